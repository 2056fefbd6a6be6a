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


#: A pool that is fed is updated by itself; of another one, a run of the table says that it is current.
UPDATED_NOW_AND_THEN = dg.FreshnessPolicy.time_window(
    warn_window=datetime.timedelta(days=30), fail_window=datetime.timedelta(days=90)
)
BY_RUN = "Comes with a run of the table, of the rows that it has in hand."


def partitions_definition(pool: str, table: Table) -> dg.PartitionsDefinition | None:
    """Shards, or trainings by training set, size and seed; None for a whole-pool table."""
    if table.grain == "training":
        return dg.StaticPartitionsDefinition(list(table.keys))
    return partitions_of(pool) if table.grain == "shard" else None


def backfill_condition(cron_schedule: str, source: dg.AssetKey) -> dg.AutomationCondition:
    """Scheduled backfill: at each tick, what is missing and can be made; nothing twice, nothing on failed checks.

    Checks of what the same run makes have not passed yet, and stop it there if they fail: without `will_be_requested`
    a new pool, and one whose last run failed, would be made table by table, one a tick. No event says that the `source`
    is there.
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
    """Partitions of one run, at most, that hold up to so many shards, or one partition; 0: any number."""
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
        return [_asset_of(settings, pool_name, table, tables, ctx) for table in tables.values()]


def _asset_of(
    settings: Settings, pool_name: str, table: Table, tables: dict[str, Table], declared: PoolContext
) -> dg.AssetsDefinition:
    options = DagsterOptions.of(declared)
    key = asset_key(declared.pool, table.name)
    is_sharded = table.grain == "shard"
    condition = backfill_condition(options.backfill_cron, source_key(declared.pool))
    partitions = partitions_definition(pool_name, table)

    @dg.asset(
        key=key,
        deps=_deps(declared.pool, table, tables),
        partitions_def=partitions,
        backfill_policy=None if partitions is None else _backfill_policy(settings, declared),
        group_name=group_of(declared.pool, table.stage),
        tags=_tags(table, declared),
        code_version=table.version,
        description=described(table.description),
        owners=list(options.owners),
        kinds=set(table.shown.kinds),
        metadata=_declared_metadata(table, declared),
        automation_condition=condition if is_sharded else None,
        check_specs=_check_specs(table, key, declared),
        freshness_policy=UPDATED_NOW_AND_THEN if table.name in (SUBSETS, REPORT) else None,
        pool=_concurrency_pool(table, declared),
        required_resource_keys={OBSERVER},
    )
    def table_asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        return Step(context, settings, pool_name).run(table, tables)

    return table_asset


def _deps(pool: Pool, table: Table, tables: Tables) -> list[dg.AssetDep]:
    of_tables = [_dep(pool, table, tables[name]) for name in table.inputs]
    return [dg.AssetDep(source_key(pool)), *of_tables] if table.name == REGISTERED_SHARDS else of_tables


def _dep(pool: Pool, table: Table, read: Table) -> dg.AssetDep:
    """A training reads every shard; `dg check defs` refuses two kinds of partitions without a word on that."""
    reads_all = table.grain == "training" and read.grain == "shard"
    return dg.AssetDep(asset_key(pool, read.name), partition_mapping=dg.AllPartitionMapping() if reads_all else None)


def _check_specs(table: Table, key: dg.AssetKey, ctx: PoolContext) -> list[dg.AssetCheckSpec]:
    """None is executed by itself: a run of the table evaluates them, of the rows that it has in hand."""
    of_run = [
        dg.AssetCheckSpec(
            check.name, asset=key, blocking=check.is_blocking, description=f"{check.description} {BY_RUN}"
        )
        for check in checks_of(table)
    ]
    by_night = night_checks.checks_of(table, ctx)
    return [*of_run, *(dg.AssetCheckSpec(one.name, asset=key, description=one.description) for one in by_night)]


def _tags(table: Table, ctx: PoolContext) -> dict[str, str]:
    """What the table is selected by in the UI and by `dg`, such as tag:pool=photos."""
    policy = table.name.removeprefix("filtered/").removesuffix("_cut")
    of_policy = {"policy": policy} if policy in {one.name for one in policies_of(ctx)} else {}
    return tags_of(ctx.pool, stage=table.stage, grain=table.grain, **of_policy)


def _concurrency_pool(table: Table, ctx: PoolContext) -> str | None:
    """Downloads share the network; models of a GPU profile share the GPU."""
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
