"""negCLIPLoss, NormSim and VAS in pools: the plain formula, shards in another order, a late shard, target images, a
takedown."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.engines import load_engine
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.own_declared import policies_folder
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods.neg_clip_loss import draw_of
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.world.pool import plant_pool, render
from tests.numeric.test_contrast import plain
from tests.support.scene_tars import write_scenes

METHODS = ["neg_clip_loss", "norm_sim", "vas"]
SCENES = plant_pool(60, 31)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("home"), "embedded")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    for number, scene in enumerate(SCENES[:4]):
        render(scene).save(folder / f"{number}.png")
    return folder


def scored(settings: Settings, name: str, source: Path, **options: object) -> PoolContext:
    add_pool(settings, name, source, options={"methods": METHODS, "image_domain": "scenes", **options})
    return run(settings, name)


def run(settings: Settings, name: str) -> PoolContext:
    ctx = PoolContext.open(settings, name)
    for method in METHODS:
        run_with_upstream(ctx, f"signals/{method}")
    return ctx


def values(ctx: PoolContext, method: str) -> dict[str, float | None]:
    frame = ctx.store.scan(f"signals/{method}").select("sample_id", "value").collect()
    return dict(frame.iter_rows())


def test_a_whole_pool_as_reference_equals_the_plain_formula(settings: Settings, targets: Path, tmp_path: Path) -> None:
    write_scenes(tmp_path / "00000.tar", SCENES[:30])
    write_scenes(tmp_path / "00001.tar", SCENES[30:], 30)
    ctx = scored(settings, "whole", tmp_path, reference_images=str(targets))
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    embedded = ctx.store.scan("signals/image_embedding").select("shard", "source_row", "image_embedding").collect()
    rows = samples.join(embedded, on=["shard", "source_row"], how="inner", maintain_order="left")
    encoder = load_engine("image_text_encoder", ctx.profile)
    images = np.array(rows["image_embedding"].to_list(), np.float32)
    expected = plain(images, encoder.embed_texts(rows["caption"].to_list()), 0.01)
    found = values(ctx, "neg_clip_loss")
    np.testing.assert_allclose([found[one] for one in rows["sample_id"]], expected, atol=1e-5)
    assert ctx.store.read("signals/contrast_pairs").height == rows.height


@pytest.mark.slow
def test_neither_the_order_of_shards_nor_a_late_one_moves_a_value(
    settings: Settings, targets: Path, tmp_path: Path
) -> None:
    first, other = tmp_path / "a", tmp_path / "b"
    for folder, names in ((first, ("00000.tar", "00001.tar")), (other, ("00001.tar", "00000.tar"))):
        folder.mkdir()
        write_scenes(folder / names[0], SCENES[:20])
        write_scenes(folder / names[1], SCENES[20:40], 20)
    options = {"contrast_pairs": 64, "reference_images": str(targets)}
    one, two = scored(settings, "one", first, **options), scored(settings, "two", other, **options)
    before = {method: values(one, method) for method in METHODS}

    def by_caption(ctx: PoolContext, method: str) -> list[tuple[str, float]]:
        captions = ctx.store.scan("raw/samples").select("shard", "source_row", "caption").collect()
        frame = ctx.store.scan(f"signals/{method}").select("shard", "source_row", "value").collect()
        return sorted(captions.join(frame, on=["shard", "source_row"]).select("caption", "value").drop_nulls().rows())

    for method in METHODS:
        for (caption, value), (same, again) in zip(by_caption(one, method), by_caption(two, method), strict=True):
            assert caption == same
            assert value == pytest.approx(again, abs=1e-6)
    pairs = one.store.read("signals/contrast_pairs")
    assert 30 < pairs.height <= 40, "all that have a caption"
    assert pairs["draw"].is_sorted()
    write_scenes(first / "00002.tar", SCENES[40:], 40)
    after = run(settings, "one")
    for method in METHODS:
        now = values(after, method)
        assert len(now) == 60
        assert {one: now[one] for one in before[method]} == before[method]
    assert after.store.read("signals/contrast_pairs").equals(pairs)


@pytest.mark.slow
def test_targets_are_a_folder_a_tar_or_a_pool(settings: Settings, targets: Path, tmp_path: Path) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    theirs.mkdir()
    write_scenes(own / "00000.tar", SCENES[:10])
    write_scenes(theirs / "00000.tar", SCENES[:4])
    add_pool(settings, "theirs", theirs, options={"image_domain": "scenes"})
    run_with_upstream(PoolContext.open(settings, "theirs"), "raw/samples")
    found = {}
    for name, given in (("folder", targets), ("tar", theirs / "00000.tar"), ("pool", "theirs")):
        ctx = scored(settings, f"by_{name}", own, reference_images=str(given))
        found[name] = values(ctx, "norm_sim")
        assert ctx.store.read("signals/target_images").height == 4
    assert found["tar"] == pytest.approx(found["pool"])
    best = sorted(found["folder"].values(), reverse=True)
    assert best[:4] == pytest.approx([1.0] * 4, abs=0.02), "the four target scenes are in the pool, as JPEG"
    with pytest.raises(ValueError, match="no file, folder or pool 'nowhere'"):
        scored(settings, "lost", own, reference_images="nowhere")
    with pytest.raises(ValueError, match="is this pool itself"):
        scored(settings, "itself", own, reference_images="itself")


CUT = "filtered/negative_cut"


def pool_with_a_policy(home: Path) -> tuple[PoolContext, list[str]]:
    """A pool of two shards that selects by negCLIPLoss; the ids of its 16 pairs, as they were drawn."""
    (home / "tars").mkdir()
    write_scenes(home / "tars" / "00000.tar", SCENES[:25])
    write_scenes(home / "tars" / "00001.tar", SCENES[25:40], 25)
    settings = load_settings(home, "embedded")
    options = {"methods": ["neg_clip_loss"], "image_domain": "scenes", "contrast_pairs": 16, "policies": ["negative"]}
    add_pool(settings, "pairs", home / "tars", options=options)
    folder = policies_folder(PoolContext.open(settings, "pairs"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "negative.yaml").write_text("name: negative\nrank_by: signals.neg_clip_loss\nfraction: 0.5\n")
    ctx = PoolContext.open(settings, "pairs")
    run_with_upstream(ctx, "filtered/negative")
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept", pl.col("caption") != "").collect()
    return ctx, sorted(samples["sample_id"].unique(), key=draw_of)


def draws_of(ctx: PoolContext) -> set[float]:
    return set(ctx.store.read("signals/contrast_pairs")["draw"])


def take_down(ctx: PoolContext, sample_id: str) -> dict[str, Any]:
    add_to_denylist(ctx.settings.home, [("uid", sample_id)])
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    run_with_upstream(ctx, "filtered/negative")
    return finish_takedown(ctx, tables, begun)[0]


@pytest.mark.slow
def test_pairs_are_drawn_again_without_a_sample_that_is_taken_down(tmp_path: Path) -> None:
    ctx, ids = pool_with_a_policy(tmp_path)
    assert draws_of(ctx) == set(map(draw_of, ids[:16]))
    before, cut = values(ctx, "neg_clip_loss"), ctx.store.read(CUT)

    certificate = take_down(ctx, ids[20])  # not among the pairs
    assert {"signals/contrast_pairs", CUT} <= set(certificate["fits_kept"])
    assert draws_of(ctx) == set(map(draw_of, ids[:16]))
    after = values(ctx, "neg_clip_loss")
    assert {one: value for one, value in after.items() if one != ids[20]} == {
        one: value for one, value in before.items() if one != ids[20]
    }

    certificate = take_down(ctx, ids[3])
    assert draws_of(ctx) == set(map(draw_of, [*ids[:3], *ids[4:17]]))
    now = values(ctx, "neg_clip_loss")
    assert now[ids[3]] is None
    assert any(now[one] != after[one] for one in ids[17:20]), "values against other pairs"
    assert "signals/contrast_pairs" not in certificate["fits_kept"]
    assert CUT in certificate["fits_kept"]
    assert ctx.store.read(CUT).equals(cut), "a cut is a number: it is kept, and the certificate names it"
    assert any("contrast_pairs" in one["path"] for one in certificate["artefacts"])


def test_pairs_that_no_method_reads_any_more_leave_by_a_takedown(tmp_path: Path) -> None:
    ctx, ids = pool_with_a_policy(tmp_path)
    (policies_folder(ctx) / "negative.yaml").unlink()
    declared = tmp_path / "pools" / "pairs.yaml"
    declared.write_text(declared.read_text().replace("- neg_clip_loss", "- clip_score").replace("- negative", "- clip"))
    ctx = PoolContext.open(ctx.settings, "pairs")
    folder = ctx.store.asset_path("signals/contrast_pairs")
    assert folder.exists()
    add_to_denylist(tmp_path, [("uid", ids[3])])
    begin_takedown(ctx, tables_of(ctx))
    assert not folder.exists()
