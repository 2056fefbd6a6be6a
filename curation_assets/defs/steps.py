"""One step of a run: its table, and where shards of it fail, what rests on it for the other shards.

Dagster records all partitions of a step as made, or none, and skips every step that reads one that failed. So a step
with failed shards records by itself what it made, and makes for its other shards what the run was to make of them
(docs/decisions/0100).
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dagster as dg

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.progress import LogLines, ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.core.stages import STAGES
from curation_assets.defs.dead_runs import tag_run
from curation_assets.defs.metadata import check_result, evaluation, metadata_of_block, run_metadata, together
from curation_assets.defs.names import asset_key, pool_and_table
from curation_assets.defs.night_checks import after_a_run
from curation_assets.defs.partitions import shards_of
from curation_assets.defs.records import CODE_VERSION, DATA_VERSION, INPUT_VERSION, POINTER
from curation_assets.flow.conservation import Rows
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import with_upstream
from curation_assets.flow.run_table import ShardResult, TableResult, run_table
from curation_assets.flow.table import Table, TableReport, Tables
from curation_assets.foreign.dagster_runs import add_metadata
from curation_assets.operations.removed_shards import missing_shards
from curation_assets.stores.lease import writing_tables
from curation_assets.stores.shard_store import WHOLE, named

OBSERVER = "curation_observer"  # a resource; other projects, which load pools as components, have names of their own
NO_VERSION, NO_EVENT = "INITIAL", "NULL"  # Dagster's words for an input that has none

Blocks = Mapping[str, Sequence[str]]  # partition → its shards


@dataclass(frozen=True)
class Observer:
    """Who watches a run: `curate run` shows bars and a line per table; the UI gets log lines."""

    progress: ProgressReporter | None = None
    table_done: Callable[[TableReport], None] = lambda report: None
    problem: Callable[[str, Exception | None], None] = lambda sentence, error: None  # what makes the run fail
    notice: Callable[[str], None] = lambda sentence: None  # what a person should read, and the run goes on
    shards: Collection[str] | None = None  # of the blocks of the run, these alone; None: all of them


class RunObserver(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The one resource that the assets need. Made for a run before its steps wait for slots, it tags the run."""

    observer: ClassVar[Observer] = Observer()

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Called by Dagster."""
        if context.instance is not None and context.run is not None:
            tag_run(context.instance, context.run)


def observer_resource(observer: Observer | None = None) -> dict[str, RunObserver]:
    """The resource by its name. `observer`: None for runs of the UI and the daemon, which write log lines."""
    made = RunObserver if observer is None else type("RunObserver", (RunObserver,), {"observer": observer})
    return {OBSERVER: made()}


@dataclass(frozen=True)
class _Made:
    """How a table went."""

    result: TableResult
    blocks: Blocks  # empty for a whole-pool table
    metadata: dict[str | None, dict[str, Any]] = field(default_factory=dict)  # of partitions without failed shards

    @property
    def stops_readers(self) -> bool:
        """Whether Dagster skips the steps that read it."""
        checks = self.result.checks
        return bool(self.result.errors) or any(one.check.is_blocking and not one.passed for one in checks)


class Step:
    """A step of a run as Dagster calls it."""

    def __init__(self, context: dg.AssetExecutionContext, settings: Settings, pool_name: str) -> None:
        self._context = context
        self._observer: Observer = getattr(context.resources, OBSERVER).observer
        progress = self._observer.progress or LogLines(context.log.info)
        planned = _tables_of_run(context, pool_name)
        self._ctx = PoolContext.open(settings, pool_name, run_id=context.run.run_id, progress=progress, planned=planned)

    def run(self, table: Table, tables: Tables) -> dg.MaterializeResult[Any]:
        """Bring a table of `tables` up to date. Raises its failure, after everything that was made is recorded."""
        blocks = {} if table.grain == "pool" else self._blocks(table)
        with writing_tables(self._ctx.store.root, on_notice=self._context.log.info):
            made = self._make(table, tables, blocks)
            if made.result.errors:
                self._record(table, made)
            if table.grain == "shard" and made.stops_readers:
                self._make_readers(table, tables)
        if made.result.errors:
            raise _failure(made.result)
        for partition, metadata in made.metadata.items():
            add_metadata(self._context, metadata, partition)
        self._observer.table_done(made.result.report)
        return dg.MaterializeResult(
            data_version=_data_version(made.result),
            check_results=[
                *(check_result(self._ctx, check, made.result) for check in made.result.checks),
                *self._by_night(table, made.result),
            ],
        )

    def _by_night(self, table: Table, result: TableResult) -> list[dg.AssetCheckResult]:
        made = {one.shard or WHOLE for one in result.shards if one.done is not None}
        return after_a_run(self._context.instance, self._ctx, table, made)

    def _blocks(self, table: Table) -> dict[str, list[str]]:
        """Partition → what the run makes of it: of a block the shards that the source has and, of what follows from
        stored tables alone, those that it no longer has. Trainings are their own partitions."""
        partitions, chosen = self._context.partition_keys, self._observer.shards
        if table.grain == "training":
            return {key: [key] for key in partitions}

        def present() -> list[str]:
            shards = self._ctx.shards()
            return [*shards, *missing_shards(self._ctx, shards)] if STAGES[table.stage].is_derived else list(shards)

        found = shards_of(partitions, present)
        return {key: [one for one in shards if chosen is None or one in chosen] for key, shards in found.items()}

    def _make(self, table: Table, tables: Tables, blocks: Blocks) -> _Made:
        """Bring a table up to date, and tell the observer and the log of what went wrong."""
        block_of = {shard: block for block, shards in blocks.items() for shard in shards}
        keys = None if table.grain == "pool" else sorted(block_of)
        metadata: dict[str | None, dict[str, Any]] = {}

        def report(result: ShardResult, frame: Rows | None) -> None:
            if result.done is None:
                self._context.log.error(f"{named(table.name, result.shard)} failed", exc_info=result.error)
                return
            is_last = keys is None or result.shard == keys[-1]  # whose columns the UI shows as the table's
            of_shard = run_metadata(self._ctx, table, result, frame, with_schema=is_last)
            block = block_of.get(result.shard or "")
            metadata[block] = together(metadata.get(block), of_shard)

        result = run_table(self._ctx, table, keys, tables=tables, on_shard=report)
        for sentence in result.warnings:
            self._context.log.warning(sentence)
            self._observer.notice(sentence)
        for sentence, error in result.problems:
            self._observer.problem(sentence, error)
        for shard in result.errors:
            metadata.pop(block_of.get(shard), None)
        in_blocks = [block for block in metadata if block is not None and list(blocks[block]) != [block]]
        for block, stored in shards_of(in_blocks, lambda: self._ctx.store.partitions(table.name)).items():
            metadata[block] |= metadata_of_block(self._ctx, table, stored, made=len(blocks[block]))
        return _Made(result, blocks, metadata)

    def _make_readers(self, failed: Table, tables: Tables) -> None:
        """Make what of the run rests on a table with failed shards, for the shards whose inputs are all there."""
        planned = {name for name in self._ctx.planned if tables[name].grain == "shard"}
        readers = {name for name in planned - {failed.name} if failed.name in with_upstream(tables, [name])}
        current: dict[str, set[str]] = {}  # shards of which a table is up to date and passed its blocking checks
        for name, table in with_upstream(tables, readers).items():
            if name not in planned:
                continue
            wanted = self._blocks(table)
            read = [current[one] for one in table.inputs if one in current]
            blocks = {
                block: [shard for shard in shards if all(shard in of_input for of_input in read)]
                for block, shards in wanted.items()
            }
            if name in readers:
                made = self._make(table, tables, {block: shards for block, shards in blocks.items() if shards})
                for block in made.blocks:
                    if blocks[block] != wanted[block]:
                        made.metadata.pop(block, None)
                self._record(table, made)
                if not made.result.errors:
                    self._observer.table_done(made.result.report)
            elif name != failed.name:  # its own turn, which may be over, records it
                ready = [shard for shards in blocks.values() for shard in shards]
                if stale := [shard for shard in ready if not self._is_current(table, shard, tables)]:
                    run_table(self._ctx, table, stale, tables=tables)
            current[name] = {
                shard for shards in blocks.values() for shard in shards if self._is_current(table, shard, tables)
            }
            current[name] -= self._ctx.store.blocked(name).keys()

    def _is_current(self, table: Table, shard: str, tables: Tables) -> bool:
        try:
            return is_up_to_date(self._ctx, table, shard, tables=tables)
        except EXPECTED_ERRORS:  # such as an input that is missing, or damaged
            return False

    def _record(self, table: Table, made: _Made) -> None:
        """Log what Dagster would of a step that failed nowhere: partitions that were made, checks; and those that
        failed, with their shards."""
        key = asset_key(self._ctx.pool, table.name)
        tags = self._provenance(table) if made.metadata else {}
        for partition, metadata in made.metadata.items():
            version = {DATA_VERSION: metadata["content_sha256"]}
            self._context.log_event(
                dg.AssetMaterialization(key, partition=partition, metadata=metadata, tags={**tags, **version})
            )
        for check in made.result.checks:
            found = check_result(self._ctx, check, made.result)
            self._context.log_event(evaluation(key, found, is_blocking=check.check.is_blocking))
        for found in self._by_night(table, made.result):
            self._context.log_event(evaluation(key, found, is_blocking=False))
        for observation in _failed_partitions(key, made.blocks, made.result):
            self._context.log_event(observation)

    def _provenance(self, table: Table) -> dict[str, str]:
        """The tags from which Dagster tells whether a materialisation is stale, and lineage what it read."""
        tags = {CODE_VERSION: table.version, f"{DATA_VERSION}_is_user_provided": "true"}
        for name in table.inputs:
            key = asset_key(self._ctx.pool, name)
            newest = self._context.instance.fetch_materializations(key, limit=1).records
            event = newest[0].asset_materialization if newest else None
            read = "/".join(key.path)
            tags[f"{POINTER}{read}"] = str(newest[0].storage_id) if newest else NO_EVENT
            tags[f"{INPUT_VERSION}{read}"] = ((event.tags if event else None) or {}).get(DATA_VERSION, NO_VERSION)
        return tags


def _tables_of_run(context: dg.AssetExecutionContext, pool_name: str) -> list[str]:
    """Tables of the pool that this run makes. Its steps follow one another in one process, whoever launched it."""
    selected = (pool_and_table(key.path) for key in context.job_def.asset_layer.selected_asset_keys)
    return [table for pool, table in selected if pool == pool_name]


def _failed_partitions(key: dg.AssetKey, blocks: Blocks, result: TableResult) -> Iterator[dg.AssetObservation]:
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
