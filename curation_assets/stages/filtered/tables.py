"""filtered: policies applied. One verdict per sample and policy, and the subsets as files that trainers read."""

import functools
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.audit.ledger import check_against_verdicts, recorded_signals, write_ledger, write_versions
from curation_assets.audit.versions import VersionBook
from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import (
    CONTAMINATION,
    DUPLICATES,
    LEDGER,
    OVERLAPS,
    PROVENANCE,
    SAMPLES,
    SUBSETS,
    stage_of,
    table_of,
)
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes, policies_of, recipe_models
from curation_assets.flow.frozen import frozen_notes
from curation_assets.flow.table import Fit, Folder, Shown, Table, TableCheck, Together
from curation_assets.numeric.identity import packed_uids
from curation_assets.selection.cut import NO_ID, PolicyCut, cut_frame, cut_of_frame
from curation_assets.selection.judging import cut_without, judge, multiplicity
from curation_assets.selection.part_by_part import fit_pool_cut
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.ranges import ranges_with_repeats, whole_pool
from curation_assets.selection.rows import DROP_REASON, ROW_KEY, UID, PoolRows, uid_columns
from curation_assets.stages.filtered.denied import COMPARED, denied_rows
from curation_assets.stores.columns import by_shard, uid_texts
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.external_sort import RUN_BYTES, ExternalSort
from curation_assets.stores.subsets import write_sorted_keys, write_sorted_subset
from curation_assets.stores.tar_samples import sample_key

KEPT_BY = "kept by "  # before a policy's name in columns of `with_policies`


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Per policy a frozen cut and the verdicts that it gives, shard by shard; subsets, overlaps and ledgers of all."""
    policies = policies_of(ctx)
    yield Table(
        name=DUPLICATES,
        grain="pool",
        inputs=(SAMPLES,),
        version="1",
        description="One row per row that brings a sample which another shard brings already. A late shard gives way "
        "to those "
        "that were there before; `curate refit POOL` lets the first shard count again.",
        compute=_duplicates,
        shown=Shown(label="same sample again"),
    )
    for policy in policies:
        yield _cut_table(policy)
        yield _policy_table(policy)
    yield Table(
        name=SUBSETS,
        grain="pool",
        inputs=(SAMPLES, DUPLICATES, *(f"filtered/{policy.name}" for policy in policies)),
        version="1",
        description="Per policy: `<policy>.npy` (DataComp's sorted u8,u8 ids), `<policy>.parquet`, and "
        "`<policy>.keys.tsv` "
        "(tar and key of every kept sample, to train on the tars as they are).",
        compute=Folder(_subsets),
        config=lambda ctx, shard: denied_rows(ctx),
        shown=Shown(kinds=("numpy", "parquet")),
    )
    yield Table(
        name=OVERLAPS,
        grain="pool",
        inputs=tuple(f"filtered/{policy.name}" for policy in policies),
        version="1",
        compute=_overlaps,
        description="One row per pair of policies: kept by each, by both, intersection over union.",
    )
    signals = {
        signal for policy in policies for signal in recorded_signals(policy, recipes_of(ctx)) if signal != RANDOM
    }
    yield Table(
        name=LEDGER,
        grain="pool",
        inputs=(
            SAMPLES,
            DUPLICATES,
            *(f"filtered/{policy.name}{part}" for policy in policies for part in ("_cut", "")),
            *sorted(
                {table_of(reference) for reference in signals} | {one for policy in policies for one in policy.tables}
            ),
        ),
        version="2",
        description="Per policy one row per sample: every signal, rank, threshold, margin, verdict, reason and the "
        "versions "
        "of all tables upstream. `curate why` reads it; replaying it gives the subset's `.npy`.",
        compute=Folder(_ledger),
        config=lambda ctx, shard: {"profile": ctx.profile.name},
        shown=Shown(
            kinds=("parquet",),
            checks=(
                TableCheck(
                    "cuts_fitted_on_these_rows",
                    "Every frozen cut was fitted on the rows and values that the pool has now.",
                    lambda ctx, shard: frozen_notes(ctx),
                ),
            ),
        ),
    )


def recipes_of(ctx: PoolContext) -> dict[str, tuple[str, ...]]:
    """Recipe of the fused stage → what it reads."""
    fitted = {recipe.key: recipe.settings.signals for recipe in fitted_recipes(ctx).values()}
    return {name: model.references for name, model in recipe_models(ctx).items()} | fitted


def _cut_table(policy: Policy) -> Table:
    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        with whole_pool(ctx.store, ctx.progress) as pool:
            return cut_frame(fit_pool_cut(policy, pool))

    def without(ctx: PoolContext, sample_ids: Collection[str]) -> pl.DataFrame | None:
        cut = cut_of(ctx, policy.name)
        if not any(one.boundary_id in sample_ids for one in cut.cuts):
            return None
        try:
            with whole_pool(ctx.store, ctx.progress) as pool:
                return cut_frame(cut_without(policy, cut, pool.parts(), sample_ids))
        except (StoreError, ValueError):  # of another policy, or a signal is missing: nobody can say which rows tie
            return ctx.store.read(f"filtered/{policy.name}_cut").with_columns(
                pl.col("boundary_id").replace(dict.fromkeys(sample_ids, NO_ID))
            )

    return Table(
        name=f"filtered/{policy.name}_cut",
        grain="pool",
        inputs=(SAMPLES, DUPLICATES, *policy.tables),
        version=policy.version,
        compute=compute,
        fit=Fit(without=without),
        description=(
            f"One row per step of policy {policy.name}: the threshold, and the pool that it was fitted on. Frozen: a "
            "shard that is added or removed later changes no other verdict until `curate refit POOL`."
        ),
    )


def _policy_table(policy: Policy) -> Table:
    def verdicts(ctx: PoolContext, shards: Sequence[str]) -> pl.DataFrame:
        return judge(policy, PoolRows.read(ctx.store, shards), cut_of(ctx, policy.name)).frame()

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        assert shard is not None, policy
        return verdicts(ctx, [shard])

    def compute_shards(ctx: PoolContext, shards: Sequence[str]) -> dict[str, pl.DataFrame]:
        return by_shard(verdicts(ctx, shards))

    columns = {"fused": "quality", CONTAMINATION: DROP_REASON, PROVENANCE: "licence"}
    values = [(table, columns.get(table, columns.get(stage_of(table), "value"))) for table in policy.tables]
    return Table(
        name=f"filtered/{policy.name}",
        grain="shard",
        inputs=(SAMPLES, DUPLICATES, f"filtered/{policy.name}_cut", *policy.tables),
        version=policy.version,
        description=f"One row per sample: kept, dropped or failed by policy {policy.name}. {policy.description}",
        compute=Together(compute, compute_shards),
        continues=SAMPLES,
        shown=Shown(
            column_lineage={
                **{name: [(SAMPLES, name)] for name in ("sample_id", "source_row")},
                "value": values,
                "threshold": [(f"filtered/{policy.name}_cut", "threshold")],
                "verdict": [(SAMPLES, "status"), *values, (f"filtered/{policy.name}_cut", "threshold")],
            }
        ),
    )


def cut_of(ctx: PoolContext, policy_name: str) -> PolicyCut:
    """The cut in force. Raises MissingTableError before the policy's first run."""
    return cut_of_frame(ctx.store.read(f"filtered/{policy_name}_cut"))


def _duplicates(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    """Recorded repeats stay as long as their shard is unchanged; rows of new and changed shards give way."""
    now = {read.partition: read.content_sha256 for read in ctx.store.input_versions(DUPLICATES, [(SAMPLES, None)])}
    before = ctx.store.manifest(DUPLICATES)
    recorded = {} if before is None else {read.partition: read.content_sha256 for read in before.inputs}
    unchanged = [key for key in now if key is not None and recorded.get(key) == now[key]]
    schema = {"sample_id": pl.String, "shard": pl.String, "source_row": pl.Int64}
    known = pl.DataFrame(schema=schema)
    if unchanged and before is not None:
        known = ctx.store.read(DUPLICATES).filter(pl.col("shard").is_in(unchanged)).select(*schema)
    with ranges_with_repeats(ctx.store, ctx.progress) as ranges:
        shared = pl.concat([_repeats(rows) for rows in ranges])
    counting = shared.join(known, on=ROW_KEY, how="anti").sort(~pl.col("shard").is_in(unchanged), *ROW_KEY)
    return pl.concat([known, counting.filter(~pl.col("sample_id").is_first_distinct())]).sort(*ROW_KEY)


def _repeats(rows: PoolRows) -> pl.DataFrame:
    """All rows of samples that raw kept in several."""
    repeated = rows.repeats(first_too=True)
    return pl.DataFrame(
        {
            "sample_id": uid_texts(rows.uid_high[repeated], rows.uid_low[repeated]),
            "shard": [rows.shard.words[code] for code in rows.shard.codes[repeated]],
            "source_row": rows.source_row[repeated],
        },
        schema={"sample_id": pl.String, "shard": pl.String, "source_row": pl.Int64},
    )


def with_policies(ctx: PoolContext, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """`columns` of a table of shards, part by part, all rows of a sample in one; and per policy, in column
    `KEPT_BY` + name, whether it keeps the sample, in whichever of its rows."""
    kept_by = {policy.name: KEPT_BY + policy.name for policy in policies_of(ctx)}
    with tempfile.TemporaryDirectory(prefix="samples-", ignore_cleanup_errors=True) as scratch:
        samples = ExternalSort(UID, Path(scratch), RUN_BYTES)
        for shard in ctx.store.partitions(SAMPLES):
            rows = ctx.store.read(table, shard, ["sample_id", "source_row", *columns])
            for name, column in kept_by.items():
                verdicts = ctx.store.read(f"filtered/{name}", shard, ["source_row", "verdict"])
                is_kept = (pl.col("verdict") == "kept").alias(column)
                rows = rows.join(verdicts.select("source_row", is_kept), on="source_row", how="left")
            samples.add(rows.select(*uid_columns(), *columns, *kept_by.values()))
        for part in samples.stretches():
            yield part.with_columns(pl.col(column).any().over(UID) for column in kept_by.values())


def _subsets(ctx: PoolContext, folder: Path) -> None:
    denylist = Denylist.load(ctx.settings.home)  # a takedown that is not applied yet already counts
    columns = list(dict.fromkeys(["sample_id", "source_row", "tar", "member", *(COMPARED if denylist else ())]))
    policies = policies_of(ctx)
    sorts = {
        policy.name: [ExternalSort(by, folder, RUN_BYTES // len(policies)) for by in (UID, ["tar", "key"])]
        for policy in policies
    }
    for shard in ctx.store.partitions(SAMPLES):
        rows = ctx.store.read(SAMPLES, shard, columns=columns)
        rows = rows.filter(~denylist.denied(rows)).with_columns(*uid_columns())
        rows = rows.with_columns(sample_key(pl.col("member")).alias("key"))
        for policy in policies:
            kept = _kept_rows(ctx, policy, shard, rows)
            ids, keys = sorts[policy.name]
            ids.add(kept.select(UID))
            keys.add(kept.select("tar", "key").drop_nulls())
    for name, (ids, keys) in sorts.items():
        packed = (packed_uids(*(stretch[half].to_numpy() for half in UID)) for stretch in ids.stretches())
        write_sorted_subset(folder / f"{name}.npy", folder / f"{name}.parquet", packed)
        write_sorted_keys(folder / f"{name}.keys.tsv", keys.stretches())


def _kept_rows(ctx: PoolContext, policy: Policy, shard: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a shard that a policy keeps, each as often as it counts."""
    verdicts = ctx.store.read(f"filtered/{policy.name}", shard, columns=["source_row", "verdict", "value"])
    verdicts = verdicts.filter(pl.col("verdict") == "kept").drop("verdict")
    kept = rows.join(verdicts, on="source_row", how="inner", maintain_order="left")
    if policy.repeats:
        times = multiplicity(np.ones(kept.height, bool), kept["value"].to_numpy())
        kept = kept[np.repeat(np.arange(kept.height), times)]
    return kept


def _verdicts(ctx: PoolContext, policy_name: str, shard: str) -> pl.DataFrame:
    return ctx.store.read(f"filtered/{policy_name}", shard, ["sample_id", "source_row", "verdict", "reason"])


def _ledger(ctx: PoolContext, folder: Path) -> None:
    book, recipes = VersionBook(ctx.store, ctx.profile.name), recipes_of(ctx)
    with whole_pool(ctx.store, ctx.progress) as pool:
        for policy in policies_of(ctx):
            path, cut = folder / f"{policy.name}.parquet", cut_of(ctx, policy.name)
            judged = write_ledger(pool, policy, path, book, recipes=recipes, cut=cut)
            check_against_verdicts(policy, judged.by_shards(), functools.partial(_verdicts, ctx, policy.name))
    write_versions(book, folder)


def _overlaps(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    names = [policy.name for policy in policies_of(ctx)]
    both = np.zeros((len(names), len(names)), dtype=np.int64)
    for key in ctx.store.partitions(SAMPLES):
        tables = [ctx.store.read(f"filtered/{name}", key, columns=["source_row", "verdict"]) for name in names]
        kept = np.stack([(table.sort("source_row")["verdict"] == "kept").to_numpy() for table in tables])  # (P, N)
        both += kept.astype(np.int64) @ kept.T.astype(np.int64)
    rows = []
    for left, name in enumerate(names):
        for right, other in enumerate(names):
            either = int(both[left, left] + both[right, right] - both[left, right])
            rows.append(
                {
                    "policy": name,
                    "other": other,
                    "kept": int(both[left, left]),
                    "other_kept": int(both[right, right]),
                    "both": int(both[left, right]),
                    "iou": int(both[left, right]) / either if either else None,
                }
            )
    return pl.DataFrame(rows, schema_overrides={"iou": pl.Float64})
