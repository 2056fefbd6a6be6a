"""Frozen cuts: shards that come late or go change no other verdict until a refit, which reports every flip."""

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.frozen import frozen_notes
from curation_assets.flow.graph import tables_of
from curation_assets.flow.parallel import materialise_partitions
from curation_assets.flow.table import Together
from curation_assets.operations.refit import (
    Refit,
    begin_refit,
    finish_refit,
    frozen_upstream,
    unfinished,
    unfreeze,
)
from curation_assets.selection.cut import cut_frame, cut_of_frame
from curation_assets.selection.judging import VERDICT_SCHEMA
from curation_assets.selection.rows import ROW_KEY
from curation_assets.stages.filtered.tables import cut_of
from curation_assets.stores.shard_store import ShardStore
from tests.support.ledgers import replay
from tests.support.lineage_pools import (
    bring_up_to_date,
    caption_of,
    finished_photos,
    jpeg,
    summarise,
    webdataset_pool,
    write_tar,
)


def verdicts(ctx: PoolContext) -> pl.DataFrame:
    """All verdicts of all policies, with what decided them."""
    parts = [
        ctx.store.scan(f"filtered/{policy.name}").select(pl.lit(policy.name).alias("policy"), *VERDICT_SCHEMA).collect()
        for policy in policies_of(ctx)
    ]
    return pl.concat(parts).sort("policy", *ROW_KEY)


def content(ctx: PoolContext, shard: str) -> dict[str, str]:
    """Data version per table of a shard."""
    tables = [table for table in tables_of(ctx).values() if table.grain == "shard"]
    found = {table.name: ctx.store.manifest(table.name, shard) for table in tables}
    return {name: manifest.content_sha256 for name, manifest in found.items() if manifest is not None}


def late_tar(home: Path, name: str, numbers: range, *, repeat_of: int | None = None) -> None:
    rows = [(f"{n:06d}", f"http://late.example/{n}.jpg", f"a late photo of thing {n}", jpeg(n)) for n in numbers]
    if repeat_of is not None:
        url = f"http://host{repeat_of % 3}.example/{repeat_of}.jpg"
        rows.append(("999999", url, caption_of(repeat_of), jpeg(repeat_of)))
    write_tar(home / "tars" / name, rows)


@pytest.mark.slow
def test_a_late_shard_changes_no_other_verdict_until_a_refit(tmp_path: Path) -> None:
    found = webdataset_pool(tmp_path, first=1)
    ctx = bring_up_to_date(found)
    before, versions = verdicts(ctx), {shard: content(ctx, shard) for shard in ctx.shards()}
    cuts = {policy.name: cut_of(ctx, policy.name) for policy in policies_of(ctx)}
    # It repeats a sample of the first shard. Its key sorts first: that gives it no right over those that were there.
    late_tar(tmp_path, "000000.tar", range(100, 130), repeat_of=9)
    ctx = bring_up_to_date(ctx.settings)
    assert ctx.shards() == ["photos-000000", *versions]
    after = verdicts(ctx)
    old = after.filter(pl.col("shard") != "photos-000000")
    assert old.equals(before)
    assert {shard: content(ctx, shard) for shard in versions} == versions
    late = after.filter(pl.col("shard") == "photos-000000")
    assert late.filter(pl.col("reason") == "duplicate_across_shards").height == len(cuts)
    assert set(late["verdict"]) == {"kept", "dropped"}
    for name, cut in cuts.items():
        assert cut_of(ctx, name) == cut
        mine = late.filter((pl.col("policy") == name) & (pl.col("verdict") == "kept"))
        assert (mine["value"] >= cut.threshold).all()
        ledger = recorded_ledger(ctx.store, name)
        replay(ledger)
        assert sum(int(part["decided_by"].count()) for part in ledger.parts(["decided_by"])) == cut.pool_size + 30

    notes = frozen_notes(ctx)
    assert len(notes) == 1, "one sentence for all policies"
    assert set(notes[0].partition(":")[0].split(", ")) == set(cuts)
    assert all("since then 1 shards came; `curate refit photos`" in note for note in notes)
    subsets = tables_of(ctx)["filtered/subsets"]
    assert [check.violations(ctx) for check in subsets.shown.checks] == [notes]
    tables = tables_of(ctx)
    begun = begin_refit(ctx, tables)
    assert unfinished(ctx) == begun or set(unfinished(ctx).policies) == set(begun.policies)  # type: ignore[union-attr]
    summarise(ctx)
    report = finish_refit(ctx, begun)
    assert unfinished(ctx) is None
    assert frozen_notes(ctx) == []
    again = verdicts(ctx)
    pairs = zip(after.select("policy", "verdict").rows(), again["verdict"], strict=True)
    slow = Counter((policy, f"{was} → {now}") for (policy, was), now in pairs if was != now)
    assert slow
    reported = {(one["policy"], flip): rows for one in report["policies"] for flip, rows in one["flips"].items()}
    assert reported == slow
    for one in report["policies"]:
        mine = pl.col("policy") == one["policy"]
        kept = [int((side.filter(mine)["verdict"] == "kept").sum()) for side in (after, again)]
        assert [one["kept_before"], one["kept_after"]] == kept
        assert one["rows"] == again.filter(mine).height
        assert one["cut_after"]["pool_size"] == one["cut_before"]["pool_size"] + 30
        assert one["kept_after"] == round(one["cut_after"]["pool_size"] / 4)


class Stopped(BaseException):
    """A kill at a step of a refit."""


def is_stopped_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` up to its `number`-th file put in place or table removed; whether it came that far."""
    steps = itertools.count()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **more: Any) -> Any:
            if next(steps) == number:
                raise Stopped
            return change(*args, **more)

        return made

    with pytest.MonkeyPatch.context() as monkeypatch:
        for place, name in ((os, "replace"), (ShardStore, "remove"), (Path, "touch")):
            monkeypatch.setattr(place, name, counted(getattr(place, name)))
        try:
            work()
        except Stopped:
            return True
    return False


def test_a_refit_stopped_at_any_step_refits_all_its_policies(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    tables, root, kept = tables_of(ctx), ctx.store.root, tmp_path / "kept"
    policies = {policy.name for policy in policies_of(ctx)}
    frozen = [name for name, table in tables.items() if table.is_frozen and ctx.store.manifest(name) is not None]

    def begin() -> Refit:
        begun = unfinished(ctx)
        if begun is None:
            return begin_refit(ctx, tables)
        unfreeze(ctx, begun)
        return begun

    shutil.copytree(root, kept, symlinks=True)
    for number in itertools.count():
        was_stopped = is_stopped_at(number, begin)
        begun = begin()
        assert set(begun.policies) == policies, number
        assert [name for name in frozen if ctx.store.manifest(name) is not None] == [], number
        assert len(list((root / "recuts").iterdir())) == 1, "one refit, one folder"
        if not was_stopped:
            break
        shutil.rmtree(root)
        shutil.copytree(kept, root, symlinks=True)
    assert number == 2 + len(begun.tables), "its note, what it removes, and that it is removed"
    summarise(ctx)
    begin()
    assert all(ctx.store.manifest(name) is not None for name in frozen), "fitted once"
    assert is_stopped_at(0, lambda: finish_refit(ctx, begun))
    assert set(unfinished(ctx).policies) == policies  # type: ignore[union-attr]
    finish_refit(ctx, begun)
    assert unfinished(ctx) is None
    assert {one["policy"] for one in json.loads((begun.folder / "flips.json").read_text())["policies"]} == policies
    assert begin().folder != begun.folder


def test_a_removed_shard_changes_no_other_verdict(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    before = verdicts(ctx)
    (tmp_path / "tars" / "000001.tar").unlink()
    for table in tables_of(ctx).values():
        if table.grain == "shard":
            ctx.store.remove(table.name, "photos-000001")
    ctx = PoolContext.open(ctx.settings, "photos")
    summarise(ctx)
    assert verdicts(ctx).equals(before.filter(pl.col("shard") != "photos-000001"))


def test_other_code_behind_a_cut_fits_it_anew(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    first = cut_of(ctx, "icc")
    for shard in ctx.shards():  # the same tables by other code, with other values
        frame = ctx.store.read("signals/icc", shard)
        ctx.store.write("signals/icc", frame.with_columns(pl.col("value") / 2), shard, code_version="8")
    summarise(ctx)
    assert cut_of(ctx, "icc").threshold == first.threshold / 2
    for shard in ctx.shards():  # other values by the same code: rows changed, the fit stays
        frame = ctx.store.read("signals/icc", shard)
        ctx.store.write("signals/icc", frame.with_columns(pl.col("value") / 2), shard, code_version="8")
    summarise(ctx)
    assert cut_of(ctx, "icc").threshold == first.threshold / 2


def test_a_refit_needs_known_policies_and_only_unfreezes_what_they_rest_on(tmp_path: Path) -> None:
    ctx = PoolContext.open(webdataset_pool(tmp_path), "photos")
    tables = tables_of(ctx)
    with pytest.raises(ValueError, match="no policies"):
        begin_refit(ctx, tables, ["nothing"])
    with pytest.raises(FileNotFoundError, match="no verdicts yet"):
        begin_refit(ctx, tables, ["icc"])
    assert frozen_upstream(tables, ["filtered/icc"], with_fits=True) == ["filtered/icc_cut"]
    assert frozen_upstream(tables, ["filtered/sieve_clip"], with_fits=False) == [
        "filtered/sieve_clip_cut", "fused/clip_score_range", "fused/sieve_range",
    ]  # fmt: skip


def test_a_cut_survives_its_table(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    for policy in policies_of(ctx):
        cut = cut_of(ctx, policy.name)
        assert cut_of_frame(cut_frame(cut)) == cut
    assert isinstance(ctx.store, ShardStore)


def test_recipes_of_many_shards_at_once_are_those_of_each_and_one_bad_shard_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ctx = finished_photos(tmp_path, shards=4)
    tables, shards = tables_of(ctx), ctx.store.partitions("raw/samples")
    recipe = tables["fused/sieve_clip"]
    assert isinstance(recipe.compute, Together)
    alone = {shard: ctx.store.read(recipe.name, shard) for shard in shards}  # made one by one
    together = recipe.compute.many(ctx, shards)
    assert {shard: frame.equals(alone[shard]) for shard, frame in together.items()} == dict.fromkeys(shards, True)
    for shard in shards:
        ctx.store.remove(recipe.name, shard)
    sieve = ctx.store.table_path("signals/sieve", shards[2])
    manifest = pl.read_parquet_metadata(sieve)
    pl.read_parquet(sieve).drop("value").write_parquet(sieve, metadata=manifest)  # says it is fresh, lacks a column
    outcomes = dict(materialise_partitions(ctx, recipe, shards, tables=tables))
    assert isinstance(outcomes[shards[2]], Exception)
    (logged,) = caplog.records  # the way round the failed batch is no secret, and names its cause
    assert logged.getMessage().startswith("fused/sieve_clip: computing 4 shards at once failed")
    assert logged.exc_info is not None
    assert ctx.store.partitions(recipe.name) == [shard for shard in shards if shard != shards[2]]
    for shard in ctx.store.partitions(recipe.name):
        assert ctx.store.read(recipe.name, shard).equals(alone[shard])
