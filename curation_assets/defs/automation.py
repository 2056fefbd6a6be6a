"""Sensors, schedules and jobs of a pool: new shards are registered, and missing partitions are backfilled."""

from typing import Any

import dagster as dg

from curation_assets.core.settings import Settings
from curation_assets.defs.assets import partitions_of
from curation_assets.defs.dead_runs import free_dead_runs
from curation_assets.defs.names import asset_key, job_name
from curation_assets.defs.partitions import new_and_old, size_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Grain
from curation_assets.foreign.dagster_runs import AssetJob
from curation_assets.operations.removed_shards import missing_shards
from curation_assets.sources.declaration import declaration_sha256

KEYS_PER_REQUEST = 1_000  # Dagster slows down on larger requests
EDITS = " (edits of known shards are found by the nightly job, `curate plan POOL` and runs)"


def shard_sensor(settings: Settings, pool_name: str) -> dg.SensorDefinition:
    """Registers shards that appeared in the pool's source as partitions. It computes nothing."""

    loaded = declaration_sha256(settings, pool_name)

    @dg.sensor(
        name=f"{pool_name}_new_shards",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Adds new shards of pool {pool_name} as partitions.",
    )
    def new_shards(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        known = set(context.instance.get_dynamic_partitions(pool_name))
        ctx = PoolContext.open(settings, pool_name)
        shards = ctx.shards()
        new, old = new_and_old(known, [*shards, *missing_shards(ctx, shards)], size := size_of(ctx))
        if not (new or old):
            due = "" if is_loaded(settings, pool_name, loaded) else f"; {reload_due(pool_name)}"
            in_blocks = "" if size == 1 else f", in {len(known)} partitions of up to {size}"
            return dg.SkipReason(f"{len(shards)} shards known{in_blocks}, none new{EDITS}{due}")
        requests: list[Any] = [partitions_of(pool_name).build_delete_request(old)] if old else []
        requests += [
            partitions_of(pool_name).build_add_request(new[start : start + KEYS_PER_REQUEST])
            for start in range(0, len(new), KEYS_PER_REQUEST)
        ]
        return dg.SensorResult(dynamic_partitions_requests=requests)

    return new_shards


def is_loaded(settings: Settings, pool_name: str, loaded: str) -> bool:
    """Whether the declaration of a pool is the one that this code location was made from (`declaration_sha256`)."""
    return declaration_sha256(settings, pool_name) == loaded


def reload_due(pool_name: str) -> str:
    """What a sensor says where it is not: its jobs and conditions follow the earlier one."""
    return (
        f"the declaration of pool {pool_name} changed since this code location was loaded: load it anew (Deployment, "
        "Reload; `curate ui` does so by itself)"
    )


def dead_run_sensor() -> dg.SensorDefinition:
    """Reports runs as failed whose process was killed: they would hold their slots, and the queue, for ever."""

    @dg.sensor(
        name="dead_runs",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports runs as failed whose process has ended; frees their slots, and assigns free ones.",
    )
    def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        return dg.SkipReason("; ".join(free_dead_runs(context.instance)) or "no run has died")

    return dead_runs


def backfill_sensor(
    name: str = "scheduled_backfill", target: dg.AssetSelection | None = None
) -> dg.AutomationConditionSensorDefinition:
    """Evaluates the scheduled-backfill conditions of all per-shard assets, or of those of `target`."""
    return dg.AutomationConditionSensorDefinition(
        name,
        target=target or dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=60,
    )


def pool_jobs(settings: Settings, pool_name: str) -> list[AssetJob]:
    """`<pool>_shards`: all per-shard tables, by partition. `<pool>_summary`: everything that reads the whole pool.

    `<pool>_trainings`, of a pool that trains models on its subsets: by training set, size and seed.
    """
    ctx = PoolContext.open(settings, pool_name)
    tables = tables_of(ctx).values()

    def of_grain(grain: Grain) -> dg.AssetSelection:
        return dg.AssetSelection.assets(*(asset_key(ctx.pool, table.name) for table in tables if table.grain == grain))

    # A process per step costs 2–4 s, and would load models and decode images once per step.
    in_one_process: Any = {"executor_def": dg.in_process_executor}
    jobs = [
        dg.define_asset_job(job_name(pool_name, "shard"), of_grain("shard"), **in_one_process),
        dg.define_asset_job(job_name(pool_name, "pool"), of_grain("pool"), **in_one_process),
    ]
    if any(table.grain == "training" for table in tables):
        jobs.append(dg.define_asset_job(job_name(pool_name, "training"), of_grain("training"), **in_one_process))
    return jobs
