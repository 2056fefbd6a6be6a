"""One Dagster asset per table and pool, made from the flow's declarations."""

import datetime
import functools
import warnings
from typing import Any

import dagster as dg

from curation_assets.core.options import HasOptions
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import DOWNLOADS, REGISTERED_SHARDS, REPORT, SUBSETS
from curation_assets.defs import night_checks
from curation_assets.defs.metadata import described
from curation_assets.defs.names import asset_key, group_of, tags_of
from curation_assets.defs.options import DagsterOptions
from curation_assets.defs.partitions import size_of
from curation_assets.defs.sources import code_references, source_key
from curation_assets.defs.steps import OBSERVER, Step
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import checks_of
from curation_assets.flow.table import Table, Tables
from curation_assets.sources.declaration import Pool
from curation_assets.stores.catalog import view_sql


@functools.cache
def partitions_of(pool: str) -> dg.DynamicPartitionsDefinition:
    """The shards of a pool, or blocks of them (defs/partitions.py)."""
    return dg.DynamicPartitionsDefinition(name=pool)


#: A pool that new shards come to is updated by itself; for another pool a run of the table shows that it is current.
UPDATED_NOW_AND_THEN = dg.FreshnessPolicy.time_window(
    warn_window=datetime.timedelta(days=30), fail_window=datetime.timedelta(days=90)
)


def partitions_definition(pool: str, table: Table) -> dg.PartitionsDefinition | None:
    """Shards, or trainings by training set, size and seed; None for a whole-pool table."""
    if table.grain == "training":
        return dg.StaticPartitionsDefinition(list(table.keys))
    return partitions_of(pool) if table.grain == "shard" else None


def backfill_condition(cron_schedule: str, source: dg.AssetKey) -> dg.AutomationCondition:
    """Scheduled backfill: each tick requests the missing partitions that can be made now.

    None is requested while it is in progress, or where a blocking check of an input has not passed.
    An input that the same run makes counts as passed (`will_be_requested`), because its checks stop
    that run where they fail; else a new pool would be made one table a tick. The `source` counts as
    there: no event reports it.
    """
    return (
        dg.AutomationCondition.cron_tick_passed(cron_schedule)
        & dg.AutomationCondition.missing()
        & ~dg.AutomationCondition.in_progress()
        & ~dg.AutomationCondition.any_deps_match(
            dg.AutomationCondition.missing() & ~dg.AutomationCondition.will_be_requested()
        ).ignore(dg.AssetSelection.assets(source))
        & dg.AutomationCondition.all_deps_match(
            dg.AutomationCondition.will_be_requested()
            | dg.AutomationCondition.all_checks_match(dg.AutomationCondition.check_passed(), blocking_only=True)
        )
    )


def partitions_per_run(shards_per_run: int, pool: HasOptions) -> int:
    """Most partitions of a run: as many as hold `shards_per_run` shards, at least one; 0: no limit."""
    return shards_per_run and max(1, shards_per_run // size_of(pool))


def _backfill_policy(settings: Settings, pool: HasOptions) -> dg.BackfillPolicy:
    at_most = partitions_per_run(settings.shards_per_run, pool)
    return dg.BackfillPolicy.multi_run(at_most) if at_most else dg.BackfillPolicy.single_run()


def pool_assets(settings: Settings, pool_name: str) -> list[dg.AssetsDefinition]:
    """All assets of one pool, upstream first."""
    ctx = PoolContext.open(settings, pool_name)
    tables = tables_of(ctx)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=dg.BetaWarning)  # backfill policies: known, and used on purpose
        return [_asset_of(settings, ctx, table, tables) for table in tables.values()]


def _asset_of(settings: Settings, ctx: PoolContext, table: Table, tables: Tables) -> dg.AssetsDefinition:
    options = DagsterOptions.of(ctx)
    pool = ctx.pool
    key = asset_key(pool, table.name)
    condition = backfill_condition(options.backfill_cron, source_key(pool))
    partitions = partitions_definition(pool.name, table)

    @dg.asset(
        key=key,
        deps=_deps(pool, table, tables),
        partitions_def=partitions,
        backfill_policy=None if partitions is None else _backfill_policy(settings, ctx),
        group_name=group_of(pool, table.stage),
        tags=_tags(table, ctx),
        code_version=table.version,
        description=described(table.description),
        owners=list(options.owners),
        kinds=set(table.shown.kinds),
        metadata=_declared_metadata(table, ctx),
        automation_condition=condition if table.grain == "shard" else None,
        check_specs=_check_specs(table, key, ctx),
        freshness_policy=UPDATED_NOW_AND_THEN if table.name in (SUBSETS, REPORT) else None,
        pool=_concurrency_pool(table, ctx),
        required_resource_keys={OBSERVER},
    )
    def table_asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        return Step(context, settings, pool.name).run(table, tables)

    return table_asset


def _deps(pool: Pool, table: Table, tables: Tables) -> list[dg.AssetDep]:
    deps = [_dep(pool, table, tables[name]) for name in table.inputs]
    if table.name == REGISTERED_SHARDS:
        deps.insert(0, dg.AssetDep(source_key(pool)))
    return deps


def _dep(pool: Pool, table: Table, read: Table) -> dg.AssetDep:
    key = asset_key(pool, read.name)
    if table.grain == "training" and read.grain == "shard":
        # A training reads every shard. Without this mapping `dg check defs` refuses two kinds of partitions.
        return dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping())
    return dg.AssetDep(key)


def _check_specs(table: Table, key: dg.AssetKey, ctx: PoolContext) -> list[dg.AssetCheckSpec]:
    """The checks that a run evaluates on the rows that it makes, and those of job nightly.

    No check can be executed by itself.
    """
    of_run = [
        dg.AssetCheckSpec(
            check.name,
            asset=key,
            blocking=check.is_blocking,
            description=f"{check.description} A run of the table evaluates it, on the rows that it makes.",
        )
        for check in checks_of(table)
    ]
    by_night = [
        dg.AssetCheckSpec(check.name, asset=key, description=check.description)
        for check in night_checks.checks_of(table, ctx)
    ]
    return of_run + by_night


def _tags(table: Table, ctx: PoolContext) -> dict[str, str]:
    """Tags that select the table in the UI and for `dg`, such as tag:pool=photos."""
    tags = tags_of(ctx.pool, stage=table.stage, grain=table.grain)
    name = table.name.removeprefix("filtered/").removesuffix("_cut")
    if name in {policy.name for policy in policies_of(ctx)}:
        tags |= tags_of(ctx.pool, policy=name)
    return tags


def _concurrency_pool(table: Table, ctx: PoolContext) -> str | None:
    """Dagster's pool of slots: downloads share the network, models of a GPU profile the GPU."""
    if table.name == DOWNLOADS:
        return "network"
    asks_models = bool(table.needs.roles) or table.needs.core
    return "gpu" if asks_models and ctx.profile.device != "cpu" else None


def _declared_metadata(table: Table, ctx: PoolContext) -> dict[str, Any]:
    metadata: dict[str, Any] = {"dagster/code_references": code_references(ctx, table)}
    pool_name = ctx.pool.name
    if not table.is_folder:  # of a folder the catalogue has no view
        metadata["dagster/table_name"] = f"{pool_name}.{table.name.replace('/', '_')}"
        metadata["query"] = dg.MetadataValue.md(f"`select * from {view_sql(pool_name, table.name)} limit 20`")
    if table.shown.column_lineage:
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {
                column: [dg.TableColumnDep(asset_key(ctx.pool, source), name) for source, name in sources]
                for column, sources in table.shown.column_lineage.items()
            }
        )
    return metadata
