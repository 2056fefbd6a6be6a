"""Drift: statistics that a reader can check, and a canary that real builds of a real model score through Dagster."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file
from scipy.stats import ks_2samp, spearmanr

from curation_assets.core.progress import Silent
from curation_assets.core.settings import Settings
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.records import check_results
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.numeric.drift import (
    drift_statistics,
    keep_rate,
    ks_distance,
    length_slope,
    population_stability_index,
    rank_correlation,
)
from curation_assets.operations.nightly import look_at_drift
from curation_assets.scoring.canary import Canary, CanaryError, drift_table, freeze_canary
from curation_assets.sources.declaration import load_pool, save_pool
from curation_assets.stages.signals.canary import violations
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool

WEIGHTS = WEIGHTS_ROOT / "clip"
TABLES = ["signals/canary", "signals/drift"]


def test_statistics_read_by_eye() -> None:
    same = np.arange(100.0)
    assert population_stability_index(same, same) == 0
    halves = np.repeat([0.0, 1.0], 50)
    # two bins, (50.5, 50.5) against (25.5, 75.5) of 101
    p, q = np.array([50.5, 50.5]) / 101, np.array([25.5, 75.5]) / 101
    moved = np.repeat([0.0, 1.0], [25, 75])
    assert population_stability_index(halves, moved, bins=2) == pytest.approx(((q - p) * np.log(q / p)).sum())
    assert ks_distance(same, same + 25) == pytest.approx(0.25)
    left, right = np.random.default_rng(3).integers(0, 9, (2, 50)).astype(float)  # with ties
    assert ks_distance(left, right) == pytest.approx(ks_2samp(left, right).statistic)
    assert rank_correlation(left, right) == pytest.approx(spearmanr(left, right).statistic)
    assert rank_correlation(same, same**3) == pytest.approx(1)
    assert rank_correlation(same, -same) == pytest.approx(-1)
    assert np.isnan(rank_correlation(same, np.zeros(100)))
    assert rank_correlation(np.zeros(3), np.zeros(3)) == 1
    assert keep_rate(np.array([1.0, 2.0, 3.0, np.nan]), 2.0) == 0.5
    assert length_slope(np.array([1.0, 3.0, 5.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(2)
    assert length_slope(np.array([1.0, 3.0]), np.array([4.0, 4.0])) == 0
    with pytest.raises(ValueError, match="2 bins"):
        population_stability_index(same, np.array([]))


def outside(reference: np.ndarray, current: np.ndarray, lengths: np.ndarray) -> set[str]:
    found = drift_statistics(reference, current, lengths, np.random.default_rng(0))
    return {one.name for one in found if not one.is_within}


def test_each_kind_of_drift_breaks_its_own_limits() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 20, 200)
    reference = rng.normal(size=200)
    assert outside(reference, reference, lengths) == set()
    assert outside(reference, reference + rng.normal(scale=0.01, size=200), lengths) == set()
    assert outside(reference, reference + 1, lengths) == {"psi", "ks", "keep_rate"}  # the order is as it was
    assert outside(reference, rng.permutation(reference), lengths) == {"rank_correlation"}
    assert "length_slope" in outside(reference, reference + 0.1 * (lengths - lengths.mean()), lengths)
    gaps = np.where(np.arange(200) < 40, np.nan, reference)
    assert "valued" in outside(reference, gaps, lengths)
    assert outside(gaps, gaps, lengths) == set()
    with pytest.raises(ValueError, match="one length"):
        drift_statistics(reference, reference[1:], lengths, rng)
    with pytest.raises(ValueError, match="2 samples at least"):
        drift_statistics(np.full(3, np.nan), np.ones(3), np.ones(3), rng)


def test_limits_are_those_of_samples_of_one_distribution() -> None:
    """Two draws of one distribution pass about as often as the confidence says: limits are no decoration."""
    rng = np.random.default_rng(2)
    lengths = np.full(80, 5)
    passed = 0
    for _ in range(40):
        found = drift_statistics(rng.normal(size=80), rng.normal(size=80), lengths, rng, resamples=100)
        passed += {one.name: one for one in found}["ks"].is_within
    assert passed >= 36


# -- the canary -------------------------------------------------------------------------------------------------------


def canary_pool(home: Path, **roles: str) -> Settings:
    """A pool of tars whose declaration names a canary of 24 of its samples; clip_score alone is watched."""
    settings = replace(load_settings_of(home), workers=1)
    pool = load_pool(settings, "photos")
    options = replace(pool.options, canary="canary.parquet", canary_methods=("clip_score",))
    save_pool(settings, replace(pool, options=options, roles=roles))
    return settings


def load_settings_of(home: Path) -> Settings:
    if (home / "pools" / "photos.yaml").is_file():
        from curation_assets.core.settings import load_settings

        return load_settings(home, "embedded")
    settings = webdataset_pool(home, shards=4)
    ctx = PoolContext.open(settings, "photos")
    tables = tables_of(ctx)
    for shard in ctx.shards():
        for table in ("raw/registered_shards", "raw/downloads", "raw/samples"):
            materialise_table(ctx, tables[table], shard, tables=tables)
    freeze_canary(ctx.store, home / "canary.parquet", 24)
    return settings


def other_build(folder: Path) -> str:
    """The shipped CLIP with a shuffled image projection: a build that scores quite differently."""
    folder.mkdir()
    for path in WEIGHTS.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(WEIGHTS / "model.safetensors")
    name = next(name for name in weights if name in ("visual.proj", "visual_projection.weight"))
    weights[name] = np.random.default_rng(0).permutation(weights[name].ravel()).reshape(weights[name].shape)
    metadata = {"format": "pt"}
    save_file(weights, folder / "model.safetensors", metadata=metadata)
    return f"path:{folder}"


def checked(settings: Settings) -> bool:
    found = check_results(
        prepare_instance(settings), load_pool(settings, "photos"), "signals/drift", ["canary_within_limits"]
    )
    return found["canary_within_limits"]


@pytest.mark.slow
def test_every_build_scores_the_canary_and_a_changed_one_is_told(tmp_path: Path) -> None:
    settings = canary_pool(tmp_path / "home")
    run_pool(settings, "photos", tables=TABLES)
    ctx = PoolContext.open(settings, "photos")
    first = ctx.store.read("signals/canary")
    assert (first.height, first["build"].n_unique()) == (24, 1)
    assert first["value"].is_not_null().all()
    assert ctx.store.read("signals/drift")["is_within"].all()
    assert checked(settings)

    settings = canary_pool(tmp_path / "home", image_text_encoder=other_build(tmp_path / "clip"))
    run_pool(settings, "photos", tables=TABLES)
    ctx = PoolContext.open(settings, "photos")
    scores = ctx.store.read("signals/canary")
    assert scores["build"].n_unique() == 2
    assert scores.filter(~pl.col("is_current")).drop("is_current").equals(first.drop("is_current"))
    drift = {row["statistic"]: row for row in ctx.store.read("signals/drift").to_dicts()}
    assert not drift["rank_correlation"]["is_within"]
    assert not checked(settings)
    assert "curate drift accept photos clip_score" in violations(ctx)[0]
    home = ["--home", str(tmp_path / "home")]
    shown = curate("drift", "show", "photos", *home)
    assert shown.exit_code == 1
    assert "outside" in shown.output

    assert curate("drift", "accept", "photos", "clip_score", *home).exit_code == 0
    run_pool(settings, "photos", tables=TABLES)
    assert checked(settings)
    assert curate("drift", "show", "photos", *home).exit_code == 0
    assert curate("drift", "accept", "photos", "nothing", *home).exit_code == 1

    settings = canary_pool(tmp_path / "home")  # back to the shipped build: its scores are there already
    run_pool(settings, "photos", tables=TABLES)
    again = PoolContext.open(settings, "photos").store.read("signals/canary")
    assert again.height == 48
    assert again.filter("is_current").select(first.columns).equals(first)
    assert not checked(settings)  # against the accepted one


@pytest.mark.slow
def test_the_same_build_is_scored_again_at_night(tmp_path: Path) -> None:
    """What no version tells (a library, a machine) shows: here the stored scores are those of another world."""
    settings = canary_pool(tmp_path / "home")
    ctx = PoolContext.open(settings, "photos")
    assert "the canary has no scores yet" in look_at_drift(ctx, Silent()).summary
    run_pool(settings, "photos", tables=TABLES)
    stored = ctx.store.read("signals/canary")
    found = look_at_drift(ctx, Silent())
    assert found.problems == []
    assert found.summary.endswith("of 1 methods, 0 outside their limits")
    assert ctx.store.read("signals/canary").equals(stored), "what is stored stays"
    ctx.store.write("signals/canary", stored.with_columns(pl.col("value").shuffle(seed=1)), code_version="1")
    found = look_at_drift(ctx, Silent())
    assert any(problem.startswith("clip_score: rank_correlation is ") for problem in found.problems)
    assert all(", scored now against " in problem for problem in found.problems)


def test_a_canary_that_changed_is_refused(tmp_path: Path) -> None:
    settings = load_settings_of(tmp_path / "home")
    path = settings.home / "canary.parquet"
    canary = Canary.read(path)
    ctx = PoolContext.open(settings, "photos")
    again = freeze_canary(ctx.store, tmp_path / "again.parquet", 24)
    assert again.sha256 == canary.sha256
    with pytest.raises(ValueError, match="never overwritten"):
        freeze_canary(ctx.store, path, 24)
    with pytest.raises(ValueError, match="20 samples at least"):
        freeze_canary(ctx.store, tmp_path / "small.parquet", 5)
    for changed in (
        canary.rows.with_columns(caption=pl.lit("another")),
        canary.rows.with_columns(image=pl.lit(b"no image")),
    ):
        changed.write_parquet(tmp_path / "changed.parquet")
        with pytest.raises(CanaryError, match="that was frozen"):
            Canary.read(tmp_path / "changed.parquet")
    (tmp_path / "none.parquet").write_text("nothing")
    with pytest.raises(CanaryError, match="curate drift freeze"):
        Canary.read(tmp_path / "none.parquet")
    pool = load_pool(settings, "photos")
    save_pool(settings, replace(pool, options=replace(pool.options, canary="missing.parquet")))
    gone = PoolContext.open(settings, "photos")
    tables = tables_of(gone)
    with pytest.raises(ValueError, match="curate drift freeze photos"):
        materialise_table(gone, tables["signals/canary"], tables=tables)


def test_a_method_without_values_is_said_not_hidden() -> None:
    def scores(values: list[float | None], build: str, is_current: bool) -> dict[str, Any]:
        n = len(values)
        return {
            "method": ["m"] * n, "build": [build] * n, "first_seen_at": [build] * n, "is_current": [is_current] * n,
            "canary_sample_id": [f"{i:032x}" for i in range(n)], "length": [3] * n, "value": values,
        }  # fmt: skip

    old, new = scores([1.0, 2.0, 3.0], "a", False), scores([None, None, None], "b", True)
    table = pl.concat([pl.DataFrame(one, schema_overrides={"value": pl.Float64}) for one in (old, new)])
    (row,) = drift_table(table, {}, fraction=0.5).to_dicts()
    assert (row["statistic"], row["value"], row["is_within"]) == ("valued", 0.0, False)
    assert json.dumps(row)


def test_a_pool_without_a_canary_is_told_how_to_get_one(tmp_path: Path) -> None:
    webdataset_pool(tmp_path)
    run = curate("drift", "show", "photos", home=tmp_path)
    assert run.exit_code == 1
    assert "drift freeze photos" in run.output
