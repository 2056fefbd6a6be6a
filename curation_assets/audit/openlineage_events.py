"""Lineage as OpenLineage events (spec 2-0-2): a run per Dagster run and table, shards as partitions of a dataset.

A dataset is a table, named as its Dagster asset (pool/stage/name). What was read and written of it is in the subset
facet (partitions) and our own facet `icc_shard` (data version and rows per shard).
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    base_subset_dataset,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    documentation_job,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    set_producer,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport
from openlineage.client.transport.transport import Transport

from curation_assets.audit.origin import Lineage, combined_version
from curation_assets.core.version import __version__
from curation_assets.stores.parquet import parquet_schema
from curation_assets.stores.shard_store import ShardStore

NAMESPACE = "curation_assets"
#: A receiver that is down must not hold up a run: two more tries within a second.
RETRY = {"total": 2, "backoff_factor": 0.2, "status_forcelist": [502, 503, 504], "allowed_methods": ["POST"]}
PRODUCER = f"urn:curation_assets:{__version__}"
_RUNS = uuid.uuid5(uuid.NAMESPACE_URL, PRODUCER.rpartition(":")[0])


@attr.define
class IccShardDatasetFacet(DatasetFacet):
    """Per shard its data version: {shard, dataVersion, rows}; shard is absent for a whole-pool table."""

    shards: list[dict[str, Any]] = attr.field(factory=list)

    @staticmethod
    def _get_schema() -> str:
        return "urn:curation_assets:facets:icc_shard:1"


@attr.define
class IccVersionsRunFacet(RunFacet):
    """Code version, configuration and models that made the output."""

    codeVersion: str  # noqa: N815 - OpenLineage writes camel case
    configHash: str  # noqa: N815
    models: list[dict[str, Any]] = attr.field(factory=list)

    @staticmethod
    def _get_schema() -> str:
        return "urn:curation_assets:facets:icc_versions:1"


@dataclass(frozen=True)
class TableFacts:
    """What the flow declares about a table, and the results of its checks."""

    description: str = ""
    column_lineage: Mapping[str, list[tuple[str, str]]] | None = None
    checks: Mapping[str, bool] | None = None


@dataclass(frozen=True)
class FailedStep:
    """A computation that failed: table, Dagster's run, when (seconds since 1970), its error message."""

    table: str
    run_id: str
    at: float
    message: str


def events_of(
    lineage: Lineage,
    store: ShardStore,
    *,
    facts: Mapping[str, TableFacts] | None = None,
    failed: Iterable[FailedStep] = (),
    engine_version: str = "",
) -> list[RunEvent]:
    """START and COMPLETE of every computation in a lineage, START and FAIL of every failed step, by time."""
    set_producer(PRODUCER)
    facts_of = facts or {}
    events: list[RunEvent] = []
    nodes = lineage.nodes
    versions = {(row["table"], row["shard"]): row for row in nodes.iter_rows(named=True)}
    edges: dict[tuple[str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for edge in lineage.edges.iter_rows(named=True):
        edges[edge["table"], edge["shard"]].append(edge)
    for (table, run_id), part in nodes.group_by("table", "run_id", maintain_order=True):
        rows = part.to_dicts()
        read = [edge for row in rows for edge in edges[row["table"], row["shard"]]]
        run = _run(lineage.pool, str(table), str(run_id), rows, engine_version)
        job = _job(lineage.pool, str(table), facts_of)
        inputs = [_input(lineage.pool, name, used, versions, facts_of) for name, used in _by_table(read)]
        started = min(_time(row["written_at"]) - timedelta(seconds=row["seconds"]) for row in rows)
        ended = max(_time(row["written_at"]) for row in rows)
        output = _output(lineage.pool, str(table), rows, store, facts_of)
        events.append(_event(RunState.START, started, run, job, inputs, [OutputDataset(NAMESPACE, output.name)]))
        events.append(_event(RunState.COMPLETE, ended, run, job, inputs, [output]))
    for step in failed:
        run = Run(
            _run_uuid(lineage.pool, step.table, step.run_id, "failed"),
            {"errorMessage": error_message_run.ErrorMessageRunFacet(step.message, "python"),
             "parent": _parent(lineage.pool, step.run_id)},
        )  # fmt: skip
        job = _job(lineage.pool, step.table, facts_of)
        at = datetime.fromtimestamp(step.at, UTC)
        outputs = [OutputDataset(NAMESPACE, f"{lineage.pool}/{step.table}")]
        events += [_event(state, at, run, job, [], outputs) for state in (RunState.START, RunState.FAIL)]
    return sorted(events, key=lambda event: event.eventTime)  # stable: START stays before COMPLETE


def emit(events: Sequence[RunEvent], target: str | Path) -> int:
    """Send events to an http(s) URL (`<url>/api/v1/lineage`), or append them to a file, one JSON per line.

    Returns how many. Raises ValueError where the receiver cannot be reached or refuses an event.
    """
    client = OpenLineageClient(transport=_transport(str(target)))
    for number, event in enumerate(events):
        try:
            client.emit(event)
        except Exception as error:  # the transports raise whatever their libraries do
            raise ValueError(
                f"OpenLineage event {number + 1} of {len(events)} did not reach {target}: {error}; what was sent "
                "before stays there, sending again is harmless (runs keep their ids)"
            ) from error
    return len(events)


def _transport(target: str) -> Transport:
    if target.startswith(("http://", "https://")):
        return HttpTransport(HttpConfig(url=target, retry=RETRY))
    path = Path(target).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileTransport(FileConfig(log_file_path=str(path), append=True))


# -- parts ------------------------------------------------------------------------------------------------------------


def _event(
    state: RunState,
    at: datetime,
    run: Run,
    job: Job,
    inputs: Sequence[InputDataset],
    outputs: Sequence[OutputDataset],
) -> RunEvent:
    return RunEvent(
        eventTime=at.isoformat(timespec="milliseconds"),
        producer=PRODUCER,
        run=run,
        job=job,
        eventType=state,
        inputs=list(inputs),
        outputs=list(outputs),
    )


def _time(written_at: str) -> datetime:
    return datetime.fromisoformat(written_at)


def _run_uuid(pool: str, table: str, run_id: str, extra: str = "") -> str:
    """The same computation has the same id whenever it is sent: receivers merge what they know already."""
    return str(uuid.uuid5(_RUNS, f"{pool}/{table}/{run_id}/{extra}"))


def _parent(pool: str, run_id: str) -> parent_run.ParentRunFacet:
    try:
        dagster_run = str(uuid.UUID(run_id))
    except ValueError:  # computed outside Dagster
        dagster_run = _run_uuid(pool, "", run_id)
    return parent_run.ParentRunFacet(parent_run.Run(dagster_run), parent_run.Job(NAMESPACE, pool))


def _run(pool: str, table: str, run_id: str, rows: list[dict[str, Any]], engine_version: str) -> Run:
    models = {(model["address"], model["weights_sha256"]): model for row in rows for model in row["models"]}
    facets: dict[str, RunFacet] = {
        "parent": _parent(pool, run_id),
        "icc_versions": IccVersionsRunFacet(
            combined_version({row["code_version"] for row in rows}),
            combined_version({row["config_hash"] for row in rows}),
            [models[key] for key in sorted(models)],
        ),
    }
    if engine_version:
        facets["processing_engine"] = processing_engine_run.ProcessingEngineRunFacet(engine_version, "Dagster")
    return Run(_run_uuid(pool, table, run_id), facets)


def _job(pool: str, table: str, facts_of: Mapping[str, TableFacts]) -> Job:
    facets: dict[str, Any] = {"jobType": job_type_job.JobTypeJobFacet("BATCH", "DAGSTER", "ASSET")}
    if table in facts_of and facts_of[table].description:
        facets["documentation"] = documentation_job.DocumentationJobFacet(facts_of[table].description)
    return Job(NAMESPACE, f"{pool}.{table.replace('/', '.')}", facets)


def _by_table(edges: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    grouped: dict[str, dict[str | None, dict[str, Any]]] = defaultdict(dict)
    for edge in edges:
        grouped[edge["input_table"]][edge["input_shard"]] = edge
    for table in sorted(grouped):
        yield table, [grouped[table][shard] for shard in sorted(grouped[table], key=lambda key: key or "")]


def _partitions(shards: Iterable[str | None]) -> base_subset_dataset.PartitionSubsetCondition | None:
    keys = [shard for shard in shards if shard is not None]
    if not keys:
        return None
    return base_subset_dataset.PartitionSubsetCondition(
        [base_subset_dataset.Partition({"shard": key}, identifier=key) for key in keys]
    )


def _shard_facet(rows: Iterable[Mapping[str, Any]]) -> IccShardDatasetFacet:
    return IccShardDatasetFacet(
        shards=[
            {"shard": row["shard"], "dataVersion": row["content_sha256"], "rows": row.get("row_count")} for row in rows
        ]
    )


def _input(
    pool: str,
    table: str,
    used: list[dict[str, Any]],
    versions: Mapping[tuple[str, str | None], Mapping[str, Any]],
    facts_of: Mapping[str, TableFacts],
) -> InputDataset:
    rows = []
    for edge in used:
        stored = versions.get((table, edge["input_shard"]))
        count = stored["row_count"] if stored and edge["is_current"] else None
        rows.append({"shard": edge["input_shard"], "content_sha256": edge["content_sha256"], "row_count": count})
    dataset = InputDataset(NAMESPACE, f"{pool}/{table}")
    dataset.facets = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(
            combined_version(row["content_sha256"] for row in rows)
        ),
        "icc_shard": _shard_facet(rows),
    }
    dataset.inputFacets = {}
    condition = _partitions(row["shard"] for row in rows)
    if condition is not None:
        dataset.inputFacets["subset"] = base_subset_dataset.InputSubsetInputDatasetFacet(condition)
    checks = facts_of[table].checks if table in facts_of else None
    if checks:
        dataset.inputFacets["dataQualityAssertions"] = (
            data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
                [data_quality_assertions_dataset.Assertion(name, passed) for name, passed in sorted(checks.items())]
            )
        )
    return dataset


def _output(
    pool: str, table: str, rows: list[dict[str, Any]], store: ShardStore, facts_of: Mapping[str, TableFacts]
) -> OutputDataset:
    paths = [store.table_path(table, row["shard"]) for row in rows]
    files = [path for path in paths if path.is_file()]
    facets: dict[str, DatasetFacet] = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(
            combined_version(row["content_sha256"] for row in rows)
        ),
        "icc_shard": _shard_facet(rows),
    }
    if files:
        schema = parquet_schema(files[0])
        facets["schema"] = schema_dataset.SchemaDatasetFacet(
            [schema_dataset.SchemaDatasetFacetFields(name, str(dtype)) for name, dtype in schema.items()]
        )
    lineage = facts_of[table].column_lineage if table in facts_of else None
    if lineage:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(
            {
                column: column_lineage_dataset.Fields(
                    [column_lineage_dataset.InputField(NAMESPACE, f"{pool}/{source}", name) for source, name in sources]
                )
                for column, sources in lineage.items()
            }
        )
    dataset = OutputDataset(NAMESPACE, f"{pool}/{table}", facets=facets)
    dataset.outputFacets = {
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(row["row_count"] for row in rows) if files else None,
            size=sum(path.stat().st_size for path in files) if files else None,
            fileCount=len(files) if files else sum(row["row_count"] for row in rows),
        )
    }
    condition = _partitions(row["shard"] for row in rows)
    if condition is not None:
        dataset.outputFacets["subset"] = base_subset_dataset.OutputSubsetOutputDatasetFacet(condition)
    return dataset
