"""What a run says of verdicts that are others than before it: how many, of which policy, and what is behind them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from curation_assets.audit.verdict_changes import VerdictChanges, verdict_changes
from curation_assets.audit.why import explain
from curation_assets.cli.run import _show_changes
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policy_names
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.frozen import frozen_notes
from curation_assets.flow.graph import tables_of
from curation_assets.sources.declaration import load_pool, save_pool
from curation_assets.stages.filtered.tables import cut_of
from tests.operations.test_refit import late_tar
from tests.support.lineage_pools import bring_up_to_date, finished_photos, summarise, webdataset_pool


def verdicts(ctx: PoolContext) -> pl.Series:
    return ctx.store.scan("filtered/icc").sort("shard", "source_row").collect()["verdict"]


def other_code(ctx: PoolContext, value: pl.Expr, version: str = "8") -> None:
    """signals/icc as other code gives it."""
    for shard in ctx.shards():
        frame = ctx.store.read("signals/icc", shard).with_columns(value.alias("value"))
        ctx.store.write("signals/icc", frame, shard, code_version=version)
    summarise(ctx)


def of_icc(changes: list[VerdictChanges]) -> list[VerdictChanges]:
    return [change for change in changes if change.policy == "icc"]


def test_a_run_with_another_model_says_which_verdicts_changed_and_why(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    ctx = finished_photos(tmp_path)
    assert verdict_changes(ctx.store) == []
    before, cut = verdicts(ctx), cut_of(ctx, "icc")
    other_code(ctx, 2 - pl.col("value"))
    after = verdicts(ctx)
    (change,) = of_icc(verdict_changes(ctx.store))
    assert sum(change.flips.values()) == (before != after).sum() > 0
    assert change.flips == {
        f"{was} → {now}": count
        for was, now in (("dropped", "kept"), ("kept", "dropped"))
        if (count := ((before == was) & (after == now)).sum())
    }
    assert change.thresholds == (cut.threshold, cut_of(ctx, "icc").threshold)
    assert change.why == ["signals/icc: version 7 → 8, model embedded:icc abababab → none"]
    _show_changes([change])
    words = " ".join(capsys.readouterr().err.split())
    assert f"icc: {sum(change.flips.values())} verdicts changed (dropped → kept" in words
    assert f"cut {change.thresholds[0]:.6g} → {change.thresholds[1]:.6g}; {change.why[0]}" in words
    assert {other.policy for other in verdict_changes(ctx.store)} <= {"icc", "icc_after_clip"}  # what reads icc


@pytest.mark.slow
def test_a_frozen_cut_moves_only_where_its_values_did(tmp_path: Path) -> None:
    """Other code that gives the same values is no reason; a shard came meanwhile, on which a fit would be another."""
    ctx = bring_up_to_date(webdataset_pool(tmp_path))
    cut = cut_of(ctx, "icc")
    late_tar(tmp_path, "000009.tar", range(100, 130))
    ctx = bring_up_to_date(ctx.settings)
    notes, before = frozen_notes(ctx), verdicts(ctx)
    other_code(ctx, pl.col("value"))
    assert cut_of(ctx, "icc") == cut
    assert verdicts(ctx).equals(before)
    assert of_icc(verdict_changes(ctx.store)) == []
    assert frozen_notes(ctx) == notes != []
    for shard in ctx.shards()[:1]:  # a value that changed by the same code is applied, and no reason either
        frame = ctx.store.read("signals/icc", shard).with_columns(pl.col("value") * 0.9)
        ctx.store.write("signals/icc", frame, shard, code_version="8")
    summarise(ctx)
    other_code(ctx, pl.col("value"), "8.1")
    assert cut_of(ctx, "icc") == cut
    tables = tables_of(ctx)
    assert materialise_table(ctx, tables["filtered/icc_cut"], tables=tables).is_reused
    other_code(ctx, pl.col("value") / 2, "9")
    assert cut_of(ctx, "icc").pool_size == cut.pool_size + 30


def test_policies_that_left_the_pool_explain_nothing(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    sample_id = ctx.store.read("raw/samples", ctx.shards()[0])["sample_id"][0]

    def named() -> set[str]:
        found = explain(ctx.settings, sample_id, None, partial(policy_names, ctx.settings))
        return {verdict["policy"] for verdict in found[0]["policies"]}

    assert {"icc", "clip"} <= named()
    pool = load_pool(ctx.settings, "photos")
    save_pool(ctx.settings, replace(pool, options=replace(pool.options, policies=("icc",))))
    assert named() == {"icc"}  # before a run, too
    summarise(PoolContext.open(ctx.settings, "photos"))
    assert named() == {"icc"}
