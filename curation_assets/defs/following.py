"""What reads the whole pool follows new shards by itself: cuts stay, ledger, subsets and report are made again.

A sensor per pool looks at the plan of `curate plan POOL` and requests, one after the other, what is stale
because rows came: never what is stale because a person changed code, models or settings, which `curate run` makes
again.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
import numpy as np
import polars as pl

from curation_assets.audit.index import Index, refresh_index
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
SHOWN = 3


@dataclass(frozen=True)
class Step:
    """What is to be made next: tables of one grain, inputs first."""

    tables: tuple[str, ...]
    grain: Grain
    keys: tuple[str, ...]  # stale partitions of any of the tables; none for whole-pool tables
    state: str  # digest of everything stored: the same step of the same state is requested once

    @property
    def run_key(self) -> str:
        """What Dagster knows the request by."""
        return hashlib.sha256(f"{self.state} {self.tables} {self.keys}".encode()).hexdigest()


def next_step(ctx: PoolContext, instance: dg.DagsterInstance, now: float) -> Step | str:
    """The next step of a pool after new shards, or in words why there is none. `now`: seconds since 1970."""
    options = DagsterOptions.of(ctx)
    declared = tables_of(ctx)
    present = ctx.shards()
    of_shard = {shard: partition_of(shard, size_of(ctx)) for shard in present}
    registered = set(instance.get_dynamic_partitions(ctx.pool.name))
    unregistered = [shard for shard, partition in of_shard.items() if partition not in registered]
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
    # the backfill makes partitions that Dagster never saw made: a shard that came into a block later is not of them
    made = instance.get_materialized_partitions(asset_key(ctx.pool, REGISTERED_SHARDS))
    missing = np.flatnonzero(plan.reasons[REGISTERED_SHARDS] == MISSING)
    new = sum(of_shard.get(plan.shards[at]) not in made for at in missing)
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
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{noun}{'s' * (len(names) > 1)} {', '.join(names[:SHOWN])}{more}"


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
    """The runs of a step: one, or one per stretch of shards, or of `shards_per_run` of them (0: however long).

    `known`: the partitions as Dagster orders them.
    """
    ranges: Sequence[tuple[str, str] | None] = [None]
    if step.grain == "shard":
        blocks = set(partitions_of_shards(step.keys, size_of(pool)))
        ranges = list(stretches(known, blocks, at_most=partitions_per_run(shards_per_run, pool) or None))
    elif step.grain == "training":
        ranges = list(stretches(sorted(step.keys), step.keys))
    return [
        dg.RunRequest(
            run_key=f"{step.run_key} {number}",
            job_name=job_name(pool.name, step.grain),
            asset_selection=[asset_key(pool, name) for name in step.tables],
            tags={POOL: pool.name, CAUSE: "new shards"}
            | ({} if ends is None else {RANGE_START: ends[0], RANGE_END: ends[1]}),
        )
        for number, ends in enumerate(ranges)
    ]


def following_sensor(settings: Settings, pool_name: str, jobs: Sequence[AssetJob]) -> dg.SensorDefinition:
    """Requests what reads the whole pool once all shards of a backfill are there. `jobs`: those of the pool."""

    loaded = declaration_sha256(settings, pool_name)

    @dg.sensor(
        name=f"{pool_name}_follows_new_shards",
        jobs=jobs,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Makes ledger, subsets and report of pool {pool_name} again after new shards; cuts stay.",
    )
    def follows(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if not is_loaded(settings, pool_name, loaded):  # its plan would be of other tables than those loaded here
            return dg.SkipReason(reload_due(pool_name))
        ctx = PoolContext.open(settings, pool_name)
        step = next_step(ctx, context.instance, time.time())
        if isinstance(step, str):
            return dg.SkipReason(step)
        requests = requests_of(
            ctx.pool, step, context.instance.get_dynamic_partitions(pool_name), settings.shards_per_run
        )
        before = context.instance.get_runs(
            dg.RunsFilter(tags={RUN_KEY: [str(request.run_key) for request in requests]})
        )
        if before:
            return dg.SkipReason(
                f"{_listed('run', [run.run_id[:8] for run in before])} made nothing new of "
                f"{_listed('table', step.tables)} and would again: mend what failed, then `curate run {pool_name}`"
            )
        return dg.SensorResult(run_requests=requests)

    return follows
