"""The whole chain on photographs with planted noise: every row ends in words, and the truth judges what was kept."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.flow.conservation import TERMINAL_STATES, violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import config_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import all_methods
from curation_assets.numeric.metrics.separation import KINDS
from curation_assets.sources.declaration import add_pool, load_pool
from curation_assets.sources.noisy_photos import TRUTH, read_planted_truth, write_noisy_photos
from curation_assets.world.web_texts import noise_texts
from tests.support.id_lists import read_subset
from tests.support.noisy_photos import ALT_TEXTS, HELD_OUT, needs_photographs, write_scene_tar

METHODS = ["personal_data", "conceptual_captions", "conceptual_captions_image", "datacomp_basic"]
POLICIES = ["datacomp_basic", "icc", "random"]
FRACTION = 0.25


def declared(home: Path, folder: Path, **options: Any) -> PoolContext:
    settings = load_settings(home, "embedded")
    options = {"methods": METHODS, "policies": POLICIES, "fraction": FRACTION, "duplicates": True} | options
    add_pool(settings, "noisy", folder, options={"truth": str(folder / TRUTH), **options})
    return PoolContext.open(settings, "noisy")


@pytest.mark.slow
@needs_photographs
def test_photographs_with_noise_go_through_the_whole_chain(tmp_path: Path) -> None:
    texts = noise_texts(pl.read_parquet(ALT_TEXTS)["text"].to_list())
    truth = write_noisy_photos([HELD_OUT], tmp_path / "pool", size=120, seed=8, texts=texts, shard_size=60)
    ctx = declared(tmp_path / "home", tmp_path / "pool")
    targets = [*(f"signals/{name}" for name in METHODS), "fused/duplicates", "filtered/subsets", "filtered/overlaps"]
    run_with_upstream(ctx, *targets)
    tables = tables_of(ctx)
    made = [name for name in tables if ctx.store.partitions(name) or ctx.store.manifest(name) is not None]
    for name in made:
        for shard in ctx.shards() if tables[name].grain == "shard" else [None]:
            assert violations(ctx, tables[name], shard) == [], name
    for policy in POLICIES:
        verdicts = ctx.store.scan(f"filtered/{policy}").collect()
        joined = verdicts.join(truth, on="sample_id", validate="1:1")
        assert joined.height == verdicts.height == truth.height == 120
        assert set(verdicts["verdict"]) <= set(TERMINAL_STATES)
        is_kept = verdicts["verdict"] == "kept"
        assert (verdicts["reason"].is_null() == is_kept).all()
        kept = verdicts.filter(is_kept)
        assert len(read_subset(ctx.store.folder_path("filtered/subsets") / f"{policy}.npy")) == kept.height
        if policy != "datacomp_basic":
            assert kept.height == round(FRACTION * 120)
    of_kind = {kind: part for (kind,), part in joined_values(ctx, truth).group_by("kind")}
    assert of_kind["odd_size"].filter(pl.col("detail").str.starts_with("tiny"))["datacomp_basic"].max() == 0
    found = ctx.store.read("fused/duplicates").join(truth, on="sample_id")
    copies = found.filter(pl.col("kind_right") == "duplicate")
    assert (copies["quality"] == 0).mean() >= 0.7  # a cropped copy may be further away than the limit
    assert (found.filter(pl.col("kind_right") == "mismatched")["quality"] == 1).all()
    assert of_kind["abstract"]["icc"].mean() < of_kind["clean"]["icc"].mean()  # type: ignore[operator]


def joined_values(ctx: PoolContext, truth: pl.DataFrame) -> pl.DataFrame:
    """The truth with a column of values per method."""
    for name in (*METHODS, "icc"):
        values = ctx.store.scan(f"signals/{name}").select("sample_id", pl.col("value").alias(name)).collect()
        truth = truth.join(values, on="sample_id", validate="1:1")
    return truth


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("scenes")
    write_scene_tar(base / "scenes.tar", 60)
    write_noisy_photos([base], base / "pool", seed=1)
    return base / "pool"


@pytest.mark.slow
def test_a_truth_of_ones_own_gives_the_table_of_separation(scenes: Path, tmp_path: Path) -> None:
    ctx = declared(tmp_path, scenes)
    run_with_upstream(ctx, "downstream/separation")
    table = ctx.store.read("downstream/separation")
    truth = read_planted_truth(scenes / TRUTH)
    assert set(table["kind"]) == set(truth["kind"]) - {"clean"} <= set(KINDS)
    counts = dict(truth.group_by("kind").len().iter_rows())
    assert (table["n"] + table["without_value"] == table["kind"].replace_strict(counts)).all()
    assert table["n_clean"].max() == counts["clean"]
    icc = dict(table.filter(pl.col("method") == "icc").select("kind", "auc").iter_rows())
    assert icc["abstract"] > 0.8
    assert icc["mismatched"] == pytest.approx(0.5, abs=0.35)  # both have captions of scenes
    tiny = table.filter((pl.col("method") == "datacomp_basic") & (pl.col("kind") == "odd_size")).row(0, named=True)
    assert tiny["is_made_for"]


def test_only_the_separation_reads_the_truth(scenes: Path, tmp_path: Path) -> None:
    with_truth = declared(tmp_path / "with", scenes)
    settings = load_settings(tmp_path / "without", "embedded")
    add_pool(settings, "noisy", scenes, options={"methods": METHODS, "policies": POLICIES, "duplicates": True})
    without = PoolContext.open(settings, "noisy")
    assert load_pool(settings, "noisy").options.truth is None
    assert set(tables_of(with_truth)) - set(tables_of(without)) == {"downstream/separation"}
    reading = {name for name, table in tables_of(with_truth).items() if "downstream/separation" in table.inputs}
    assert reading == {"downstream/report"}
    assert all(name in all_methods() for name in METHODS)


def test_a_changed_truth_makes_the_table_again_and_a_missing_one_is_named(scenes: Path, tmp_path: Path) -> None:
    own = tmp_path / "truth.parquet"
    truth = read_planted_truth(scenes / TRUTH)
    truth.write_parquet(own)
    ctx = declared(tmp_path, scenes, truth=str(own))
    table = tables_of(ctx)["downstream/separation"]
    before = config_of(ctx, table, None)
    truth.with_columns(kind=pl.lit("clean")).write_parquet(own)
    assert config_of(ctx, table, None) != before
    own.unlink()
    with pytest.raises(ValueError, match=r"no file .*truth\.parquet"):
        config_of(ctx, table, None)
