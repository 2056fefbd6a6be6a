"""One Dagster asset per table and pool, made from the flow's declarations."""

import functools
import hashlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from curation_assets.core.options import HasOptions
from curation_assets.core.progress import LogLines, ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import DOWNLOADS, LEDGER
from curation_assets.defs.dead_runs import tag_run
from curation_assets.defs.metadata import check_result, described, metadata_of_block, run_metadata, together
from curation_assets.defs.options import DagsterOptions
from curation_assets.defs.partitions import shards_of, size_of
from curation_assets.flow.conservation import Rows
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import ShardResult, TableResult, checks_of, run_table
from curation_assets.flow.table import Grain, Table, TableReport
from curation_assets.foreign.dagster_runs import add_metadata
from curation_assets.operations.removed_shards import missing_shards
from curation_assets.sources.declaration import Pool
from curation_assets.stores.catalog import view_sql
from curation_assets.stores.lease import writing_tables
from curation_assets.stores.shard_store import named

OBSERVER = "curation_observer"  # a resource; other projects, which load pools as components, have names of their own
JOBS: dict[Grain, str] = {"shard": "shards", "pool": "summary", "training": "trainings"}


@dataclass(frozen=True)
class Observer:
    """Who watches a run: `curate run` shows bars and a line per table; the UI gets log lines."""

    progress: ProgressReporter | None = None
    table_done: Callable[[TableReport], None] = lambda report: None
    problem: Callable[[str, Exception | None], None] = lambda sentence, error: None  # what makes the run fail
    notice: Callable[[str], None] = lambda sentence: None  # what a person should read, and the run goes on
    shards: Collection[str] | None = None  # of the blocks of the run, these alone; None: all of them


def observer_resource(observer: Observer | None = None) -> dict[str, dg.ResourceDefinition]:
    """The one resource that the assets need. Made for a run before its steps wait for slots, it tags the run."""

    def made(context: dg.InitResourceContext) -> Observer:
        if context.instance is not None and context.run is not None:
            tag_run(context.instance, context.run)
        return observer or Observer()

    return {OBSERVER: dg.ResourceDefinition(resource_fn=made)}


def asset_key(pool: Pool, name: str) -> dg.AssetKey:
    """Key of a table's asset: [pool, stage, name], after the prefix that the pool's declaration names."""
    return dg.AssetKey([*DagsterOptions.of(pool).asset_key_prefix, pool.name, *name.split("/")])


def pool_and_table(key: Sequence[str]) -> tuple[str, str]:
    """Pool and table of the parts of an asset's key, whatever its prefix; empty names where it is of no table."""
    pool, *table = key[-3:] if len(key) >= 3 else ("", "")
    return pool, "/".join(table)


def job_name(pool: str, grain: Grain) -> str:
    """Name of a pool's job of all its tables of one grain, and of the runs of `curate run` that make some of them."""
    return f"{pool}_{JOBS[grain]}"


@functools.cache
def partitions_of(pool: str) -> dg.DynamicPartitionsDefinition:
    """The shards of a pool, or blocks of them (defs/partitions.py)."""
    return dg.DynamicPartitionsDefinition(name=pool)


def partitions_definition(pool: str, table: Table) -> dg.PartitionsDefinition | None:
    """Shards, or trainings by training set, size and seed; None for a whole-pool table."""
    if table.grain == "training":
        return dg.StaticPartitionsDefinition(list(table.keys))
    return partitions_of(pool) if table.grain == "shard" else None


def backfill_condition(cron_schedule: str) -> dg.AutomationCondition:
    """Scheduled backfill: at each tick, what is missing and can be made; nothing twice, nothing on failed checks.

    Checks of what the same run makes have not passed yet, and stop it there if they fail: without `will_be_requested`
    a new pool, and one whose last run failed, would be made table by table, one a tick.
    """
    return (
        dg.AutomationCondition.cron_tick_passed(cron_schedule)
        & dg.AutomationCondition.missing()
        & ~dg.AutomationCondition.in_progress()
        & ~dg.AutomationCondition.any_deps_missing()
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
    partitions = partitions_definition(pool_name, table)

    @dg.asset(
        key=key,
        deps=[_dep(declared.pool, table, tables[name]) for name in table.inputs],
        partitions_def=partitions,
        backfill_policy=None if partitions is None else _backfill_policy(settings, declared),
        group_name=table.stage,
        code_version=table.version,
        description=described(table.description),
        owners=list(options.owners),
        kinds=set(table.shown.kinds),
        metadata=_declared_metadata(table, declared),
        automation_condition=backfill_condition(options.backfill_cron) if is_sharded else None,
        check_specs=_check_specs(table, key),
        pool=_concurrency_pool(table, declared),
        required_resource_keys={OBSERVER},
    )
    def table_asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        observer: Observer = getattr(context.resources, OBSERVER)
        progress = observer.progress or LogLines(context.log.info)
        planned = _tables_of_run(context, pool_name)
        ctx = PoolContext.open(settings, pool_name, run_id=context.run_id, progress=progress, planned=planned)
        blocks = {} if partitions is None else _shards_of_run(ctx, table, context.partition_keys, observer.shards)
        block_of = {shard: block for block, shards in blocks.items() for shard in shards}
        keys = None if partitions is None else sorted(block_of)
        shown: dict[str, dict[str, Any]] = {}  # of blocks, since a partition takes metadata once

        def report(result: ShardResult, frame: Rows | None) -> None:
            if result.done is None:
                context.log.error(f"{named(table.name, result.shard)} failed", exc_info=result.error)
                return
            is_last = keys is None or result.shard == keys[-1]  # whose columns the UI shows as the table's
            metadata = run_metadata(ctx, table, result, frame, with_schema=is_last)
            block = block_of.get(result.shard or "")
            if block is None or block == result.shard:
                add_metadata(context, metadata, result.shard)
            else:
                shown[block] = together(shown.get(block), metadata)

        with writing_tables(ctx.store.root, on_notice=context.log.info):
            result = run_table(ctx, table, keys, tables=tables, on_shard=report)
        for sentence in result.warnings:
            context.log.warning(sentence)
            observer.notice(sentence)
        for sentence, error in result.problems:
            observer.problem(sentence, error)
        if result.errors:
            for observation in _failed_partitions(key, blocks, result):
                context.log_event(observation)
            raise _failure(result)
        for block, stored in shards_of(shown, lambda: ctx.store.partitions(table.name)).items():
            of_all = metadata_of_block(ctx, table, stored, made=len(blocks[block]))
            add_metadata(context, shown[block] | of_all, block)
        observer.table_done(result.report)
        return dg.MaterializeResult(
            data_version=_data_version(result),
            check_results=[check_result(ctx, check, result) for check in result.checks],
        )

    return table_asset


def _shards_of_run(
    ctx: PoolContext, table: Table, partitions: Sequence[str], chosen: Collection[str] | None
) -> dict[str, list[str]]:
    """Partition → what the run makes of it: of a block the shards that the source has and, of what follows from stored
    tables alone, those that it no longer has. Trainings are their own partitions."""
    if table.grain == "training":
        return {key: [key] for key in partitions}

    def present() -> list[str]:
        shards = ctx.shards()
        return [*shards, *missing_shards(ctx, shards)] if STAGES[table.stage].is_derived else list(shards)

    found = shards_of(partitions, present)
    return {key: [one for one in shards if chosen is None or one in chosen] for key, shards in found.items()}


def _dep(pool: Pool, table: Table, read: Table) -> dg.AssetDep:
    """A training reads every shard; `dg check defs` refuses two kinds of partitions without a word on that."""
    reads_all = table.grain == "training" and read.grain == "shard"
    return dg.AssetDep(asset_key(pool, read.name), partition_mapping=dg.AllPartitionMapping() if reads_all else None)


def _tables_of_run(context: dg.AssetExecutionContext, pool_name: str) -> list[str]:
    """Tables of the pool that this run makes. Its steps follow one another in one process, whoever launched it."""
    selected = (pool_and_table(key.path) for key in context.job_def.asset_layer.selected_asset_keys)
    return [table for pool, table in selected if pool == pool_name]


def _failed_partitions(
    key: dg.AssetKey, blocks: Mapping[str, Sequence[str]], result: TableResult
) -> Iterator[dg.AssetObservation]:
    """An event for each partition with shards that failed, which names them. It does not count as made."""
    for block, shards in blocks.items():
        failed = _sentences({shard: result.errors[shard] for shard in shards if shard in result.errors})
        if failed:
            words = f"{len(failed)} of {len(shards)} shards failed, the others are kept: {', '.join(failed)}"
            yield dg.AssetObservation(key, partition=block, description=words, metadata=failed)


def _sentences(errors: Mapping[str, Exception]) -> dict[str, str]:
    return {shard: f"{type(error).__name__}: {error}" for shard, error in errors.items()}


def _failure(result: TableResult) -> Exception:
    """What a run raises of a table with errors: of a whole-pool table its own exception."""
    errors = result.errors
    first = next(iter(errors.values()))
    if result.table.grain == "pool":
        return first
    sentences = _sentences(errors)
    what = "trainings" if result.table.grain == "training" else "shards"
    failure = dg.Failure(
        f"{result.table.name}: {len(errors)} of {len(result.shards)} {what} failed; finished {what} are kept "
        f"and a retry computes only the rest. First: {next(iter(sentences.values()))}",
        metadata=sentences,
    )
    failure.__cause__ = first
    return failure


def _data_version(result: TableResult) -> dg.DataVersion:
    """One version for all partitions of a run is all that Dagster takes; the exact ones are in the manifests."""
    hashes = "".join(sorted(done.manifest.content_sha256 for done in result.finished))
    return dg.DataVersion(hashlib.sha256(hashes.encode()).hexdigest())


def _check_specs(table: Table, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(check.name, asset=key, blocking=check.is_blocking, description=check.description)
        for check in checks_of(table)
    ]


def _concurrency_pool(table: Table, ctx: PoolContext) -> str | None:
    """Downloads share the network; models of a GPU profile share the GPU."""
    if table.name == DOWNLOADS:
        return "network"
    asks_models = bool(table.needs.roles) or table.needs.core
    return "gpu" if asks_models and ctx.profile.device != "cpu" else None


def _declared_metadata(table: Table, ctx: PoolContext) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    pool_name = ctx.pool.name
    view = None  # of a folder: the catalogue has views of ledgers alone
    if not table.is_folder:
        view = view_sql(pool_name, table.name)
        metadata["dagster/table_name"] = f"{pool_name}.{table.name.replace('/', '_')}"
    elif table.name == LEDGER and (policies := policies_of(ctx)):
        view = view_sql(pool_name, f"ledger_{policies[0].name}")
    if view is not None:
        metadata["query"] = dg.MetadataValue.md(f"`select * from {view} limit 20`")
    if table.shown.column_lineage:
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {
                column: [dg.TableColumnDep(asset_key(ctx.pool, source), name) for source, name in sources]
                for column, sources in table.shown.column_lineage.items()
            }
        )
    return metadata
