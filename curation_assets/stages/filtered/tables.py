"""filtered: policies applied. One verdict per sample and policy, and the subsets as files that trainers read.

The verdict tables of a policy are its ledger (audit/ledger.py): they are of shards, and a late shard adds its own.
"""

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import polars as pl

from curation_assets.audit.ledger import ledger_facts, recorded_signals, signal_column
from curation_assets.core.errors import StoreError
from curation_assets.core.plain_json import plain
from curation_assets.core.table_names import (
    CONTAMINATION,
    DUPLICATES,
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
from curation_assets.selection.cut import NO_ID, PolicyCut, cut_frame, cut_of_frame
from curation_assets.selection.judging import cut_without, fit_cut, judge
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import (
    DROP_REASON,
    ROW_KEY,
    Changed,
    Pool,
    Wanted,
    read_rows,
    repeats_digest,
    shards_with_repeats,
)
from curation_assets.stages.filtered.denied import denied_rows
from curation_assets.stages.filtered.subsets import write_subsets
from curation_assets.stores.columns import by_shard
from curation_assets.stores.pool_queries import open_whole_pool, statement

KEPT_BY = "kept by "  # before a policy's name in columns of `with_policies`


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Per policy a frozen cut and the verdicts that it gives, shard by shard; subsets and overlaps of all."""
    policies = policies_of(ctx)
    yield Table(
        name=DUPLICATES,
        grain="pool",
        inputs=(SAMPLES,),
        version="1",
        description=(
            "One row per row that brings a sample which another shard brings already. A late shard gives way to "
            "those that were there before; `curate refit POOL` lets the first shard count again."
        ),
        compute=_duplicates,
        shown=Shown(label="same sample again"),
    )
    for policy in policies:
        yield _cut_table(policy)
        yield _policy_table(ctx, policy)
    yield Table(
        name=SUBSETS,
        grain="pool",
        inputs=(SAMPLES, *(f"filtered/{policy.name}" for policy in policies)),
        version="2",
        description=(
            "Per policy: `<policy>.npy` (DataComp's sorted u8,u8 ids), `<policy>.parquet`, and `<policy>.keys.tsv` "
            "(tar and key of every kept sample, shard after shard, to train on the tars as they are)."
        ),
        compute=Folder(write_subsets),
        config=denied_rows,
        shown=Shown(
            kinds=("numpy", "parquet"),
            checks=(
                TableCheck(
                    "cuts_fitted_on_these_rows",
                    "Every frozen cut was fitted on the rows and values that the pool has now.",
                    frozen_notes,
                ),
            ),
        ),
    )
    yield Table(
        name=OVERLAPS,
        grain="pool",
        inputs=tuple(f"filtered/{policy.name}" for policy in policies),
        version="1",
        compute=_overlaps,
        description="One row per pair of policies: kept by each, by both, intersection over union.",
    )


def recipes_of(ctx: PoolContext) -> dict[str, tuple[str, ...]]:
    """Recipe of the fused stage → what it reads."""
    fitted = {recipe.key: recipe.settings.signals for recipe in fitted_recipes(ctx).values()}
    return {name: model.references for name, model in recipe_models(ctx).items()} | fitted


def _cut_table(policy: Policy) -> Table:
    def compute(ctx: PoolContext) -> pl.DataFrame:
        return cut_frame(fit_cut(policy, _pool(ctx)))

    def without(ctx: PoolContext, sample_ids: Collection[str]) -> pl.DataFrame | None:
        cut = cut_of(ctx, policy.name)
        if not any(one.boundary_id in sample_ids for one in cut.cuts):
            return None
        try:
            left = Changed(_pool(ctx), functools.partial(remaining, policy))
            return cut_frame(cut_without(policy, cut, left, sample_ids))
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
        changes=_moved,
        description=(
            f"One row per step of policy {policy.name}: the threshold, and the pool that it was fitted on. Frozen: a "
            "shard that is added or removed later changes no other verdict until `curate refit POOL`."
        ),
    )


def _pool(ctx: PoolContext) -> Pool:
    return Pool(ctx.store, ctx.progress)


def _policy_table(ctx: PoolContext, policy: Policy) -> Table:
    signals = recorded_signals(policy, recipes_of(ctx))
    wanted = Wanted.of(policy) | Wanted(tuple(signals), tuple(signals))
    read = {table_of(reference) for reference in signals if reference != RANDOM}

    def verdicts(ctx: PoolContext, shards: Sequence[str]) -> pl.DataFrame:
        rows = read_rows(ctx.store, shards, wanted)
        judged = judge(policy, remaining(policy, rows), cut_of(ctx, policy.name))
        return judged.hstack(rows.select(list(_recorded(rows, signals))))

    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:
        return verdicts(ctx, [shard])

    def compute_shards(ctx: PoolContext, shards: Sequence[str]) -> dict[str, pl.DataFrame]:
        return by_shard(verdicts(ctx, shards))

    columns = {"fused": "quality", CONTAMINATION: DROP_REASON, PROVENANCE: "licence"}
    values = [(table, columns.get(table, columns.get(stage_of(table), "value"))) for table in policy.tables]
    return Table(
        name=f"filtered/{policy.name}",
        grain="shard",
        inputs=(SAMPLES, f"filtered/{policy.name}_cut", *dict.fromkeys([*policy.tables, *sorted(read)])),
        version=f"2 {policy.version}",
        description=f"One row per sample: kept, dropped or failed by policy {policy.name}, with all signals behind it. "
        f"`curate why` reads it; replaying it gives the subset's `.npy`. {policy.description}",
        compute=Together(compute, compute_shards),
        config_by_key=_config,
        own_configs=lambda ctx: shards_with_repeats(ctx.store),
        facts=lambda ctx: ledger_facts(policy, ctx.profile.name),
        changes=_flips,
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


def _config(ctx: PoolContext, shard: str | None) -> dict[str, str]:
    """Settings of a shard's verdicts, with its own repeats only: a late shard makes no other stale."""
    return {"profile": ctx.profile.name, "repeats": "" if shard is None else repeats_digest(ctx.store, shard)}


def _moved(before: pl.DataFrame, now: pl.DataFrame) -> dict[str, float | None]:
    """The threshold of the last step as it was, where it is another."""
    was, threshold = (cut_of_frame(one).threshold for one in (before, now))
    return plain({} if was == threshold else {"threshold": was})


def _flips(before: pl.DataFrame, now: pl.DataFrame) -> dict[str, dict[str, int]]:
    """'kept → dropped' → rows."""
    was, verdicts = (one.select("source_row", "verdict") for one in (before, now))
    both = was.join(verdicts, on="source_row", suffix="_now").filter(pl.col("verdict") != pl.col("verdict_now"))
    counted = Counter(both.select("verdict", "verdict_now").iter_rows())
    flips = {f"{one} → {other}": rows for (one, other), rows in sorted(counted.items())}
    return {"verdicts": flips} if flips else {}


def _recorded(rows: pl.DataFrame, signals: Sequence[str]) -> Iterator[pl.Expr]:
    """Columns of a ledger for signals, and for the scores that recipes among them fuse."""
    for reference in signals:
        yield pl.col(reference).alias(signal_column(reference))
        for name in rows.columns:
            if name.startswith(f"{reference}:") and name.endswith("_score"):  # 7 digits are enough: no cut uses them
                score = name.removeprefix(f"{reference}:")
                yield pl.col(name).cast(pl.Float32).alias(signal_column(reference, score))


def cut_of(ctx: PoolContext, policy_name: str) -> PolicyCut:
    """The cut in force. Raises MissingTableError before the policy's first run."""
    return cut_of_frame(ctx.store.read(f"filtered/{policy_name}_cut"))


def _duplicates(ctx: PoolContext) -> pl.DataFrame:
    """Recorded repeats stay as long as their shard is unchanged; rows of new and changed shards give way."""
    before, shards = ctx.store.manifest(DUPLICATES), ctx.store.partitions(SAMPLES)
    recorded = {} if before is None else before.contents_read
    unchanged = [shard for shard in shards if recorded.get((SAMPLES, shard)) == ctx.store.content(SAMPLES, shard)]
    schema = {"sample_id": pl.String, "shard": pl.String, "source_row": pl.Int64}
    known = pl.DataFrame(schema=schema)
    if unchanged:
        known = ctx.store.read(DUPLICATES).filter(pl.col("shard").is_in(unchanged)).select(*schema)
    with open_whole_pool(ctx.store, [SAMPLES]) as connection:
        name = "repeats"
        if unchanged:
            came = sorted({*shards}.difference(unchanged))
            ids = ctx.store.scan(SAMPLES, came).select("sample_id").collect() if came else known.select("sample_id")
            connection.register("came", ids.to_arrow())
            name = "repeats_of_some"
        shared = connection.sql(statement(name)).pl().cast(pl.Schema(schema))
    counting = shared.join(known, on=ROW_KEY, how="anti").sort(~pl.col("shard").is_in(unchanged), *ROW_KEY)
    return pl.concat([known, counting.filter(~pl.col("sample_id").is_first_distinct())]).sort(*ROW_KEY)


def with_policies(ctx: PoolContext, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """`columns` of a table of shards, part by part, all rows of a sample in one; and per policy, in column
    `KEPT_BY` + name, whether it keeps the sample, in whichever of its rows."""
    kept_by = {policy.name: KEPT_BY + policy.name for policy in policies_of(ctx)}
    repeated = ctx.store.read(DUPLICATES)["sample_id"].unique().implode()
    in_several = []
    for shard in ctx.store.partitions(SAMPLES):
        rows = ctx.store.read(table, shard, ["sample_id", "source_row", *columns])
        for name, column in kept_by.items():
            verdicts = ctx.store.read(f"filtered/{name}", shard, ["source_row", "verdict"])
            is_kept = (pl.col("verdict") == "kept").alias(column)
            rows = rows.join(verdicts.select("source_row", is_kept), on="source_row", how="left")
        rows = rows.select("sample_id", *columns, *kept_by.values())
        is_repeated = pl.col("sample_id").is_in(repeated)
        in_several.append(rows.filter(is_repeated))
        yield rows.filter(~is_repeated)
    yield pl.concat(in_several).with_columns(pl.col(column).any().over("sample_id") for column in kept_by.values())


def _overlaps(ctx: PoolContext) -> pl.DataFrame:
    names = [policy.name for policy in policies_of(ctx)]
    both = np.zeros((len(names), len(names)), dtype=np.int64)
    for key in ctx.store.partitions(SAMPLES):
        tables = [ctx.store.read(f"filtered/{name}", key, columns=["verdict"]) for name in names]
        kept = np.stack([(table["verdict"] == "kept").to_numpy() for table in tables]).astype(np.float64)  # (P, N)
        both += (kept @ kept.T).astype(np.int64)
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
