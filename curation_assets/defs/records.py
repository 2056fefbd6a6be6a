"""What Dagster recorded about a pool's tables: materialisations, check results, failures. Reading only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from curation_assets.audit.origin import RECORDS_SCHEMA
from curation_assets.defs.metadata import SHARDS
from curation_assets.defs.names import asset_key, pool_and_table
from curation_assets.sources.declaration import Pool

# tags of materialisations, two of them with the key of an input after them
DATA_VERSION, CODE_VERSION = "dagster/data_version", "dagster/code_version"
INPUT_VERSION, POINTER = "dagster/input_data_version/", "dagster/input_event_pointer/"
PAGE = 1_000  # events per question to the log
RECENT_CHECKS = 20


@dataclass(frozen=True)
class Failure:
    """A step that failed."""

    run_id: str
    table: str
    at: float  # seconds since 1970, UTC
    message: str


def materialisations(instance: dg.DagsterInstance, pool: Pool, tables: Sequence[str]) -> pl.DataFrame:
    """Every recorded materialisation of `tables` (RECORDS_SCHEMA), oldest first."""
    rows = []
    for table in tables:
        for record, event in events_of(instance, asset_key(pool, table)):
            content = event.metadata.get("content_sha256")
            versions = {event.partition: None if content is None else str(content.value)}
            block = event.metadata.get(SHARDS)
            if isinstance(block, dg.JsonMetadataValue) and isinstance(block.value, dict):
                versions = {shard: str(version) for shard, version in block.value.items()}
            read = sorted(pointers_of(event).items())
            rows += [
                {
                    "table": table,
                    "shard": shard,
                    "storage_id": record.storage_id,
                    "run_id": record.run_id,
                    "at": record.timestamp,
                    "content_sha256": version,
                    "code_version": (event.tags or {}).get(CODE_VERSION),
                    "pointers": [{"table": pool_and_table(key.path)[1], "storage_id": newest} for key, newest in read],
                }
                for shard, version in versions.items()
            ]
    return pl.DataFrame(rows, schema=RECORDS_SCHEMA, orient="row").sort("storage_id")


def events_of(
    instance: dg.DagsterInstance, key: dg.AssetKey
) -> Iterator[tuple[dg.EventLogRecord, dg.AssetMaterialization]]:
    """Every recorded materialisation of an asset, oldest first."""
    cursor: str | None = None
    has_more = True
    while has_more:
        page = instance.fetch_materializations(key, limit=PAGE, cursor=cursor, ascending=True)
        cursor, has_more = page.cursor, page.has_more
        for record in page.records:
            if record.asset_materialization is not None:
                yield record, record.asset_materialization


def pointers_of(event: dg.AssetMaterialization) -> dict[dg.AssetKey, int]:
    """What a materialisation read: asset → storage id of its newest event that was there."""
    return {
        dg.AssetKey(name.removeprefix(POINTER).split("/")): int(value)
        for name, value in (event.tags or {}).items()
        if name.startswith(POINTER) and value.isdigit()
    }


def check_results(instance: dg.DagsterInstance, pool: Pool, table: str, checks: Sequence[str]) -> dict[str, bool]:
    """Newest result of each named check of a table; a check that never ran is left out."""
    passed = {}
    for name in checks:
        key = dg.AssetCheckKey(asset_key(pool, table), name)
        newest = newest_evaluation(instance, key)
        if newest is not None:
            passed[name] = newest.passed
    return passed


def newest_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """The newest result of a check; None where it never ran."""
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=RECENT_CHECKS):
        event = record.event.dagster_event if record.event else None
        if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
    return None  # after it: checks that were planned by runs that failed


def failures(instance: dg.DagsterInstance, pool: Pool, limit: int = 100) -> list[Failure]:
    """Failed steps of the newest failed runs, newest first."""
    failed_steps = []
    of_pool = asset_key(pool, "").to_python_identifier()  # what its steps are named by
    filters = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])
    for run in instance.get_runs(filters=filters, limit=limit):
        for step, at, cause in errors_of(instance, run):
            if step.startswith(of_pool):
                table = step.removeprefix(of_pool).replace("__", "/", 1)
                failed_steps.append(Failure(run.run_id, table, at, cause.message.strip() if cause else ""))
    return failed_steps


def errors_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[tuple[str, float, Any]]:
    """Each failed step of a run: its key, time, and the error that it raised (None: not recorded)."""
    for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records:
        event = record.event_log_entry.dagster_event
        if event is not None:
            error = event.step_failure_data.error
            yield str(event.step_key), record.event_log_entry.timestamp, (error and error.cause) or error
