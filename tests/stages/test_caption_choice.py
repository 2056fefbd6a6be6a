"""Chosen captions of a pool: each source, its reason, a late shard, and what exports write."""

import json
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import curation_assets as ca
from curation_assets.core.settings import Settings, load_settings
from curation_assets.core.table_names import CHOSEN_CAPTION, PROVENANCE, SUBSETS
from curation_assets.flow.conservation import violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import pack_uids
from curation_assets.operations.releases import create_release
from curation_assets.operations.summaries import write_summary
from curation_assets.outputs.exports.formats import FORMATS
from curation_assets.outputs.exports.subset import subset_of_ids, with_chosen_captions
from curation_assets.outputs.summary.forms import FORMS
from curation_assets.sources.declaration import add_pool
from curation_assets.world.pool import plant_pool
from tests.support.scene_tars import write_scenes

SCENES = plant_pool(50, 41)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_scenes(folder / "00000.tar", SCENES[:30])
    return folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("home"), "embedded")


@pytest.fixture(scope="module")
def pool(settings: Settings, source: Path) -> PoolContext:
    options = {
        "caption_choice": {"raw_share": 0.4},
        "caption_count": 2,
        "image_domain": "scenes",
        "policies": ["clip"],
        "fraction": 0.8,
    }
    add_pool(settings, "scenes", source, options=options)
    ctx = PoolContext.open(settings, "scenes")
    run_with_upstream(ctx, CHOSEN_CAPTION)
    return ctx


def table(ctx: PoolContext) -> pl.DataFrame:
    rows = ctx.store.scan("raw/samples").select("shard", "source_row", "caption", "status").collect()
    scores = ctx.store.scan("signals/clip_score").select("shard", "source_row", "value").collect()
    written = ctx.store.scan("signals/generated_captions").select("shard", "source_row", "generated_captions").collect()
    chosen = ctx.store.scan(CHOSEN_CAPTION).collect()
    for other in (rows, scores, written):
        chosen = chosen.join(other, on=["shard", "source_row"])
    return chosen


def test_the_best_share_keeps_its_own_caption_and_others_the_best_they_have(pool: PoolContext) -> None:
    assert violations(pool, tables_of(pool)[CHOSEN_CAPTION], "scenes-000000") == []
    rows = table(pool).drop_nulls("chosen_caption")
    threshold = pool.store.read(f"{CHOSEN_CAPTION}_cut")["threshold"][0]
    scores = pool.store.scan("signals/clip_score").collect()["value"].drop_nulls()
    assert threshold == np.quantile(scores.to_numpy(), 1 - 0.4)
    assert set(rows.filter(pl.col("value") >= threshold)["caption_source"]) == {"raw"}
    assert rows["caption_source"].str.starts_with("generated").any()
    for row in rows.iter_rows(named=True):
        source = row["caption_source"]
        own = row["caption"] if source == "raw" else row["generated_captions"][int(source.removeprefix("generated "))]
        assert row["chosen_caption"] == own
    missing = table(pool).filter(pl.col("chosen_caption").is_null())
    assert missing["reason"].null_count() == 0


def test_exports_hold_the_choice_and_the_original(pool: PoolContext, tmp_path: Path) -> None:
    rows = table(pool).drop_nulls("chosen_caption")
    subset = with_chosen_captions(subset_of_ids(pool, rows["sample_id"].unique().to_list(), "all"))
    FORMATS["webdataset"].write(subset, tmp_path / "tars")
    known = {row["sample_id"]: row for row in rows.iter_rows(named=True)}
    with tarfile.open(tmp_path / "tars" / "00000000.tar") as tar:
        for member in tar.getmembers():
            if member.name.endswith(".json"):
                meta = json.load(tar.extractfile(member))  # type: ignore[arg-type]
                row = known[meta["uid"]]
                assert meta["caption"] == row["chosen_caption"]
                assert (meta["caption_original"], meta["caption_source"]) == (row["caption"], row["caption_source"])
                text = tar.extractfile(member.name.replace(".json", ".txt"))
                assert text is not None
                assert text.read().decode() == row["chosen_caption"]
    FORMATS["hf"].write(subset, tmp_path / "hf")
    written = pl.concat([pl.read_parquet(path) for path in (tmp_path / "hf" / "data").glob("*.parquet")])
    assert {"caption", "caption_source", "caption_original"} <= set(written.columns)
    assert "caption_source" not in subset.signals
    np.save(tmp_path / "all.npy", pack_uids(subset.sample_ids))
    columns, home = ("sample_id", "caption", "caption_source"), pool.settings.home
    read = list(ca.dataset(str(tmp_path / "all.npy"), home=home, pool="scenes", captions="chosen", columns=columns))
    assert {one["sample_id"]: (one["caption"], one["caption_source"]) for one in read} == {
        sample_id: (row["chosen_caption"], row["caption_source"]) for sample_id, row in known.items()
    }
    raw = ca.dataset(str(tmp_path / "all.npy"), home=home, pool="scenes", columns=columns[:2])
    assert {one["sample_id"]: one["caption"] for one in raw} == {name: row["caption"] for name, row in known.items()}


def test_a_late_shard_moves_nobody(pool: PoolContext, settings: Settings, source: Path) -> None:
    before = pool.store.read(CHOSEN_CAPTION, "scenes-000000")
    write_scenes(source / "00001.tar", SCENES[30:], 30)
    ctx = PoolContext.open(settings, "scenes")
    run_with_upstream(ctx, CHOSEN_CAPTION)
    assert ctx.store.read(CHOSEN_CAPTION, "scenes-000000").equals(before)
    assert ctx.store.read(CHOSEN_CAPTION, "scenes-000001").height == 20


def test_a_pool_without_a_choice_says_what_to_do(settings: Settings, source: Path) -> None:
    add_pool(settings, "plain", source)
    ctx = PoolContext.open(settings, "plain")
    run_with_upstream(ctx, "raw/samples")
    ids = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()["sample_id"].to_list()
    with pytest.raises(ValueError, match="set its option caption_choice: true"):
        with_chosen_captions(subset_of_ids(ctx, ids[:3], "few"))


def test_a_release_counts_the_chosen_captions_with_their_model(pool: PoolContext) -> None:
    run_with_upstream(pool, SUBSETS)
    run_with_upstream(pool, PROVENANCE)
    release = create_release(pool, tables_of(pool), "clip", "v1")
    written = write_summary(pool.settings.home, release, FORMS["eu-gpai"], Path("none.yaml"))
    content = json.loads((written.folder / "summary.json").read_text())
    (answer,) = (one for section in content["sections"] for one in section["answers"]
                 if one["asked"] == "Generated captions")  # fmt: skip
    ledger = pl.read_parquet(release.ledger_paths)
    kept = ledger.filter(pl.col("verdict") == "kept").join(table(pool), on=["shard", "source_row"])
    counted = dict(kept.group_by("caption_source").len().iter_rows())
    (shown,) = answer["tables"]
    assert {row["caption_source"]: row["kept"] for row in shown["rows"] if row["kept"]} == counted
    generated = sum(rows for name, rows in counted.items() if name.startswith("generated"))
    assert [number["value"] for number in answer["numbers"]] == [generated, kept.height]
    assert generated > 0
    (model,) = pool.store.manifest("signals/generated_captions", "scenes-000000").models  # type: ignore[union-attr]
    assert model["weights_sha256"] in answer["text"]
    assert model["address"] in answer["text"]
