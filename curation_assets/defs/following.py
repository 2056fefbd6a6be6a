"""Tables of the whole pool follow new shards: ledger, subsets and report are made again; cuts stay.

A sensor per pool looks at the plan of `curate plan POOL` and requests, step by step, the tables
that are stale because rows came. Tables that are stale because a person changed code, models or
settings are left to `curate run`.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
import numpy as np
import polars as pl

from curation_assets.audit.index import Index, refresh_index
from curation_assets.core.errors import few
from curation_assets.core.settings import SHARDS_PER_RUN, Settings
from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.defs.assets import partitions_per_run
from curation_assets.defs.automation import is_loaded, reload_due
from curation_assets.defs.dead_runs import UNFINISHED
from curation_assets.defs.launch import POOL, RANGE_END, RANGE_START, phases, stretches
from curation_assets.defs.names import asset_key, job_name, pool_and_table
from curation_assets.defs.options import DagsterOptions
from curation_assets.defs.partitions import partition_of, partitions_of_shards, size_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Grain, Table
from curation_assets.foreign.dagster_runs import AssetJob
from curation_assets.operations.planning import BY_A_PERSON, MISSING, Plan, facts_of, make_plan, trainings_of
from curation_assets.sources.declaration import Pool, declaration_sha256
from curation_assets.stores.parquet import scan_parquet

CAUSE = "curation/cause"
QUEUED = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *UNFINISHED)
RUN_KEY = "dagster/run_key"
SHOWN = 3  # names in a sentence; of the others it states how many there are


@dataclass(frozen=True)
class Step:
    """The tables to make next: of one grain, inputs first."""

    tables: tuple[str, ...]
    grain: Grain
    keys: tuple[str, ...]  # stale partitions of any of the tables; none for whole-pool tables
    state: str  # digest of all stored tables: while it is the same, the same step is requested once

    @property
    def run_key(self) -> str:
        """The key by which Dagster tells two requests apart."""
        return hashlib.sha256(f"{self.state} {self.tables} {self.keys}".encode()).hexdigest()


def next_step(ctx: PoolContext, instance: dg.DagsterInstance, now: float) -> Step | str:
    """The next step after new shards; without one, the reason in words. `now`: seconds since 1970."""
    options = DagsterOptions.of(ctx)
    declared = tables_of(ctx)
    present = ctx.shards()
    partitions = {shard: partition_of(shard, size_of(ctx)) for shard in present}
    registered = set(instance.get_dynamic_partitions(ctx.pool.name))
    unregistered = [shard for shard, partition in partitions.items() if partition not in registered]
    if unregistered:
        return f"waits until {len(unregistered)} new shards are registered as partitions"
    running = [run.run_id[:8] for run in instance.get_runs(dg.RunsFilter(statuses=[*QUEUED])) if _is_of(run, ctx)]
    if running:
        return f"waits for {_listed('run', running)} of this pool"
    refresh_index(ctx.store, declared)
    shards = sorted({*present, *ctx.store.partitions(SAMPLES)})
    facts = facts_of(ctx, declared)
    index = Index.read(ctx.store.root / "index", shards, trainings_of(facts))
    plan = make_plan(facts, index)
    changed = [name for name, codes in plan.reasons.items() if np.isin(codes, BY_A_PERSON).any()]
    if changed:
        return (
            f"{_listed('table', changed)} rest on other code, models or settings than today's: "
            f"`curate run {ctx.pool.name}` makes them again; until then nothing follows new shards"
        )
    # The backfill makes the partitions that Dagster has never seen materialised. A shard that joined a
    # block later is in a partition that was, so it is left to this sensor.
    made = instance.get_materialized_partitions(asset_key(ctx.pool, REGISTERED_SHARDS))
    missing = np.flatnonzero(plan.reasons[REGISTERED_SHARDS] == MISSING)
    new = sum(partitions.get(plan.shards[at]) not in made for at in missing)
    if new:
        return f"waits for the scheduled backfill ({options.backfill_cron}) of {new} new shards"
    since = now - _last_written(ctx)
    if 0 <= since < 60 * options.quiet_minutes:
        return f"waits until nothing was written for {options.quiet_minutes:g} minutes; now {since / 60:.1f}"
    for phase in phases(list(declared.values())):
        stale = [table for table in phase if (plan.reasons[table.name] >= 0).any()]
        if stale:
            return Step(tuple(table.name for table in stale), stale[0].grain, _stale_keys(plan, stale), _state(index))
    return f"up to date with {len(present)} shards"


def _is_of(run: dg.DagsterRun, ctx: PoolContext) -> bool:
    selected = run.asset_selection or ()
    return run.tags.get(POOL) == ctx.pool.name or any(pool_and_table(key.path)[0] == ctx.pool.name for key in selected)


def _listed(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' * (len(names) > 1)} {few(names, SHOWN)}"


def _last_written(ctx: PoolContext) -> float:
    newest = scan_parquet(ctx.store.root / "index/tables.parquet").select(pl.col("modified_ns").max()).collect()
    return (newest.item() or 0) / 1e9


def _stale_keys(plan: Plan, tables: Sequence[Table]) -> tuple[str, ...]:
    keys = (key for table in tables for key, _ in plan.partitions(table.name))
    return tuple(sorted({key for key in keys if key is not None}))


def _state(index: Index) -> str:
    digest = hashlib.sha256()
    for name, table in sorted(index.tables.items()):
        for part in (name.encode(), table.is_stored.tobytes(), table.content.tobytes()):
            digest.update(part)
    return digest.hexdigest()


def requests_of(
    pool: Pool, step: Step, known: Sequence[str], shards_per_run: int = SHARDS_PER_RUN
) -> list[dg.RunRequest]:
    """The runs of a step: one for whole-pool tables, else one per unbroken stretch of partitions.

    `known`: the partitions in Dagster's order. `shards_per_run`: a longer stretch of shards is
    several runs; 0: of any length.
    """
    tags = {POOL: pool.name, CAUSE: "new shards"}
    tags_of_runs = [tags]
    if step.grain != "pool":
        if step.grain == "shard":
            blocks = set(partitions_of_shards(step.keys, size_of(pool)))
            ranges = stretches(known, blocks, at_most=partitions_per_run(shards_per_run, pool))
        else:
            ranges = stretches(sorted(step.keys), step.keys)
        tags_of_runs = [tags | {RANGE_START: first, RANGE_END: last} for first, last in ranges]
    return [
        dg.RunRequest(
            run_key=f"{step.run_key} {number}",
            job_name=job_name(pool.name, step.grain),
            asset_selection=[asset_key(pool, name) for name in step.tables],
            tags=tags_of_run,
        )
        for number, tags_of_run in enumerate(tags_of_runs)
    ]


def following_sensor(settings: Settings, pool_name: str, jobs: Sequence[AssetJob]) -> dg.SensorDefinition:
    """A sensor that requests the tables of the whole pool once all shards of a backfill are there.

    `jobs`: the pool's own.
    """
    loaded = declaration_sha256(settings, pool_name)

    @dg.sensor(
        name=f"{pool_name}_follows_new_shards",
        jobs=jobs,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Makes ledger, subsets and report of pool {pool_name} again after new shards; cuts stay.",
    )
    def follows(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if not is_loaded(settings, pool_name, loaded):  # the plan would name other tables than those loaded here
            return dg.SkipReason(reload_due(pool_name))
        ctx = PoolContext.open(settings, pool_name)
        step = next_step(ctx, context.instance, time.time())
        if isinstance(step, str):
            return dg.SkipReason(step)
        instance = context.instance
        requests = requests_of(ctx.pool, step, instance.get_dynamic_partitions(pool_name), settings.shards_per_run)
        run_keys = [str(request.run_key) for request in requests]
        before = instance.get_runs(dg.RunsFilter(tags={RUN_KEY: run_keys}))
        if before:
            return dg.SkipReason(
                f"{_listed('run', [run.run_id[:8] for run in before])} made nothing new of "
                f"{_listed('table', step.tables)} and would again: mend what failed, then `curate run {pool_name}`"
            )
        return dg.SensorResult(run_requests=requests)

    return follows
