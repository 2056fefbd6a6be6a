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

MADE: dict[Grain, str] = {
    "shard": "All per-shard tables, by partition.",
    "pool": "All tables of the whole pool.",
    "training": "Models trained on subsets, by training set, size and seed.",
}
#: A new pool cannot be made by one job alone: verdicts of shards rest on cuts, which rest on the shards' signals.
ALL_OF = "What it reads of others must be there: to make everything, materialise `tag:pool={pool}` in the lineage."
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
        description="Fills in shards that are missing and can be made, at the pool's backfill_cron.",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=60,
    )


def pool_jobs(settings: Settings, pool_name: str) -> list[AssetJob]:
    """A job for each grain that the pool has tables of."""
    ctx = PoolContext.open(settings, pool_name)
    jobs = []
    for grain, what in MADE.items():
        keys = [asset_key(ctx.pool, table.name) for table in tables_of(ctx).values() if table.grain == grain]
        if keys:
            jobs.append(
                dg.define_asset_job(
                    job_name(pool_name, grain),
                    dg.AssetSelection.assets(*keys),
                    description=f"{what} {ALL_OF.format(pool=pool_name)}",
                    # a process per step costs 2–4 s, and would load models and decode images once per step
                    executor_def=dg.in_process_executor,
                )
            )
    return jobs
