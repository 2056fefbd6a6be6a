"""What Dagster recorded about a pool's tables: materialisations, check results, failures. Reading only."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        cursor: str | None = None
        has_more = True
        while has_more:
            page = instance.fetch_materializations(asset_key(pool, table), limit=PAGE, cursor=cursor, ascending=True)
            cursor, has_more = page.cursor, page.has_more
            for record in page.records:
                event = record.asset_materialization
                if event is None:
                    continue
                tags = event.tags or {}
                content = event.metadata.get("content_sha256")
                versions = {event.partition: None if content is None else str(content.value)}
                block = event.metadata.get(SHARDS)
                if isinstance(block, dg.JsonMetadataValue) and isinstance(block.value, dict):
                    versions = {shard: str(version) for shard, version in block.value.items()}
                pointers = [
                    {"table": pool_and_table(name.removeprefix(POINTER).split("/"))[1], "storage_id": int(value)}
                    for name, value in sorted(tags.items())
                    if name.startswith(POINTER) and value.isdigit()
                ]
                rows += [
                    {
                        "table": table,
                        "shard": shard,
                        "storage_id": record.storage_id,
                        "run_id": record.run_id,
                        "at": record.timestamp,
                        "content_sha256": version,
                        "code_version": tags.get(CODE_VERSION),
                        "pointers": pointers,
                    }
                    for shard, version in versions.items()
                ]
    return pl.DataFrame(rows, schema=RECORDS_SCHEMA, orient="row").sort("storage_id")


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
        records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
        for record in records:
            entry = record.event_log_entry
            step = entry.dagster_event.step_key if entry.dagster_event else None
            table = (step or "").removeprefix(of_pool).replace("__", "/", 1)
            if step is None or not step.startswith(of_pool):
                continue
            error = entry.dagster_event.step_failure_data.error if entry.dagster_event else None
            cause = error.cause if error and error.cause else error
            failed_steps.append(Failure(run.run_id, table, entry.timestamp, cause.message.strip() if cause else ""))
    return failed_steps
