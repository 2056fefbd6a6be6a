"""What Dagster is made to do otherwise in this process and its runs."""

import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.instance import config
from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._utils import touch_file

_load_yaml = config.load_yaml_from_globs

WAIT_SECONDS = 0.5  # at most, until a run that waits for a slot looks whether it is stopped


def find_own_configuration(dagster_home: Path | None = None) -> None:
    """Dagster reads the path of its dagster.yaml as a pattern: in a folder such as `exp [a]` it would miss the file,
    and fall back to other storages, and to telemetry. Nothing is sent in any case. `dagster_home`: the instance's.
    """
    if dagster_home is not None:
        os.environ["DAGSTER_HOME"] = str(dagster_home)  # infra/dagster.yaml names it
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")  # of the processes that this one starts, too
    config.load_yaml_from_globs = _load_yaml_of_path  # type: ignore[assignment]


def _load_yaml_of_path(path: str) -> Mapping[object, object]:
    return _load_yaml(glob.escape(path))


def leave_output_alone(instance: dg.DagsterInstance) -> None:
    """Runs of this process print where it prints, and their pages in the UI state that.

    To keep a copy, Dagster would send output through a file to a `tail`: two processes for each stream of each run,
    late lines, and tracebacks at Ctrl+C. An instance that keeps output elsewhere (dagster.yaml, compute_logs) does so.
    """
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

    def until_next_look(context: InstanceConcurrencyContext) -> float:
        now = time.time()
        waits = [at - now for at in context._pending_timeouts.values()]
        return min([WAIT_SECONDS, *waits])

    InstanceConcurrencyContext.interval_to_next_pending_claim_check = until_next_look  # type: ignore[method-assign, assignment]
