"""What Dagster is made to do otherwise in this process and its runs."""

import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from curation_assets.core.errors import ExpectedError
from curation_assets.foreign.guards import CONFIGURATION_PATH, OWN_OUTPUT, SHARD_METADATA, SLEEP_FOR_SLOTS

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as AssetJob
else:
    AssetJob = Any  # what `dg.define_asset_job` returns; Dagster exports no name of it

WAIT_SECONDS = 0.5  # at most, until a run that waits for a slot looks whether it is stopped


class HomeNotReadError(ExpectedError):
    """Dagster would miss the configuration in this home."""


def find_own_configuration(dagster_home: Path | None = None) -> None:
    """Dagster reads the path of its dagster.yaml as a pattern: in a folder such as `exp [a]` it would miss the file,
    and fall back to other storages, and to telemetry. Nothing is sent in any case. `dagster_home`: the instance's.

    Raises HomeNotReadError for such a folder where Dagster is left as it is.
    """
    if dagster_home is not None:
        os.environ["DAGSTER_HOME"] = str(dagster_home)  # infra/dagster.yaml names it
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")  # of the processes that this one starts, too
    if CONFIGURATION_PATH.is_on():
        from dagster._core.instance import config

        global _load_yaml
        if config.load_yaml_from_globs is not _load_yaml_of_path:
            _load_yaml = config.load_yaml_from_globs
            config.load_yaml_from_globs = _load_yaml_of_path  # type: ignore[assignment]
    elif dagster_home is not None and glob.has_magic(str(dagster_home)):
        raise HomeNotReadError(
            f"Dagster {dg.__version__} reads [, * and ? in {dagster_home} as a pattern and would miss its "
            "dagster.yaml; use a --home without them"
        )


_load_yaml: Any = None  # Dagster's own


def _load_yaml_of_path(path: str) -> Mapping[object, object]:
    loaded: Mapping[object, object] = _load_yaml(glob.escape(path))
    return loaded


def leave_output_alone(instance: dg.DagsterInstance) -> None:
    """Runs of this process print where it prints, and their pages in the UI state that.

    To keep a copy, Dagster would send output through a file to a `tail`: two processes for each stream of each run,
    late lines, and tracebacks at Ctrl+C. An instance that keeps output elsewhere (dagster.yaml, compute_logs) does so.
    """
    if not OWN_OUTPUT.is_on():
        return
    from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
    from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
    from dagster._utils import touch_file

    manager = instance.compute_log_manager
    if type(manager) is not LocalComputeLogManager:
        return

    @contextmanager
    def not_captured(log_key: Sequence[str]) -> Iterator[CapturedLogContext]:
        with manager.open_log_stream(log_key, ComputeIOType.STDOUT) as stream:
            if stream is not None:
                stream.write("What this run printed is where it was started (a terminal, a notebook), not here.\n")
        yield CapturedLogContext(log_key)
        touch_file(manager.complete_artifact_path(log_key))

    manager.capture_logs = not_captured  # type: ignore[method-assign]


def sleep_while_waiting() -> None:
    """Runs of this process sleep between two looks at a slot of a concurrency pool that another run holds. Dagster
    means to, but takes the smaller of zero and the time until the next look: a run that waits takes a core.
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
    1,280 times 1,280."""
    if not SHARD_METADATA.is_on():
        context.add_asset_metadata(metadata, partition_key=partition_key)
        return
    step = context.get_step_execution_context()
    step._metadata_accumulator = step._metadata_accumulator.with_additional_asset_metadata(
        asset_key=context.asset_key, metadata=metadata, partition_key=partition_key
    )
