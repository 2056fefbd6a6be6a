"""What Dagster is made to do otherwise in this process and its runs."""

import glob
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import dagster as dg

from curation_assets.core.settings import cache_root
from curation_assets.foreign.guards import RUNS_OF_COMMANDS, SHARD_METADATA, SLEEP_FOR_SLOTS

AssetJob: TypeAlias = Any  # what `dg.define_asset_job` returns; Dagster exports no name of it
WAIT_SECONDS = 0.5  # at most, until a run that waits for a slot looks whether it is stopped
OUTPUT = "curation_assets.foreign.dagster_output"
LOCATION, REPOSITORY = "curation", "__repository__"  # of workspace.yaml, and what Dagster calls the one of a location


def set_dagster_home(dagster_home: Path) -> Path:
    """Have Dagster read its dagster.yaml here; returns the path that it gets. Nothing is sent to its makers.

    Dagster reads that path as a pattern: in a folder such as `exp [a]` it would miss the file, and fall back to other
    storages. It gets a link to such a folder, in the user's cache.
    """
    path = dagster_home.absolute()
    if glob.has_magic(str(path)):
        link = cache_root() / "dagster_homes" / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.symlink_to(path, target_is_directory=True)
        except FileExistsError:  # by the command before, or one beside this
            if link.readlink() != path:
                raise
        path = link
    os.environ["DAGSTER_HOME"] = str(path)  # infra/dagster.yaml names it
    send_nothing()
    return path


def send_nothing() -> None:
    """No telemetry of this process and those that it starts."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")


class CommandInstance(dg.DagsterInstance):
    """An instance whose runs are of the code location that the UI shows: else Jobs and Timeline leave them out.

    Upstream: `execute_in_process` takes no origin. With `JobDefinition.execute_in_process(remote_job_origin=…)`, or a
    public name of the location in a run's tags, this class would go.
    """

    @classmethod
    def config_schema(cls) -> dict[str, Any]:
        """Called by Dagster: nothing is configured."""
        return {}

    def create_run_for_job(self, job_def: dg.JobDefinition, **others: Any) -> dg.DagsterRun:  # type: ignore[override]
        """As Dagster does it."""
        return super().create_run_for_job(job_def, **{**others, "remote_job_origin": _origin_of(job_def.name)})


def _origin_of(job: str) -> Any:
    """Where a job is defined, from its form in Dagster's databases, which every version reads."""
    location = {"__class__": "RegisteredRepositoryLocationOrigin", "location_name": LOCATION}
    repository = {
        "__class__": "ExternalRepositoryOrigin", "repository_location_origin": location, "repository_name": REPOSITORY,
    }  # fmt: skip
    origin = {"__class__": "ExternalPipelineOrigin", "external_repository_origin": repository, "pipeline_name": job}
    return dg.deserialize_value(json.dumps(origin))


def for_commands(instance: dg.DagsterInstance) -> dg.DagsterInstance:
    """The same instance for runs of this process: they print where it prints, and the UI has them among its jobs.

    An instance that keeps output elsewhere (dagster.yaml, compute_logs) does so.
    """
    if not RUNS_OF_COMMANDS.is_on():
        return instance
    ref = instance.get_ref()
    logs: Any = ref.compute_logs_data
    printed = logs._replace(module_name=OUTPUT, class_name="PrintedElsewhere")
    own = logs._replace(module_name=__name__, class_name=CommandInstance.__name__, config_yaml="{}")
    is_local = logs.class_name == "LocalComputeLogManager"
    replaced = ref._replace(custom_instance_class_data=own, compute_logs_data=printed if is_local else logs)
    instance.dispose()
    return dg.DagsterInstance.from_ref(replaced)


def sleep_while_waiting() -> None:
    """Runs of this process sleep between two looks at a slot of a concurrency pool that another run holds. Dagster
    means to, but takes the smaller of zero and the time until the next look: a run that waits takes a core.

    Upstream: `max(0, …)` for `min(0, …)` in InstanceConcurrencyContext.interval_to_next_pending_claim_check.
    """
    if not SLEEP_FOR_SLOTS.is_on():
        return
    from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext

    def until_next_look(context: InstanceConcurrencyContext) -> float:
        now = time.time()
        waits = [at - now for at in context._pending_timeouts.values()]
        return min([WAIT_SECONDS, *waits])

    InstanceConcurrencyContext.interval_to_next_pending_claim_check = until_next_look  # type: ignore[method-assign, assignment]


def add_metadata(context: dg.AssetExecutionContext, metadata: Mapping[str, Any], partition_key: str | None) -> None:
    """As `context.add_asset_metadata`, which reads all partitions of the asset anew for each one: of 1,280 shards
    1,280 times 1,280.

    Upstream: OpExecutionContext.add_asset_metadata asks whether the run's subset contains a key, not for all its keys.
    """
    if not SHARD_METADATA.is_on():
        context.add_asset_metadata(metadata, partition_key=partition_key)
        return
    step = context.get_step_execution_context()
    step._metadata_accumulator = step._metadata_accumulator.with_additional_asset_metadata(
        asset_key=context.asset_key, metadata=metadata, partition_key=partition_key
    )
