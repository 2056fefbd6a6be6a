"""Where runs of a command print: where the command does. Loaded by Dagster, by its name in an instance's reference.

To keep a copy, Dagster would send output through a file to a `tail`: two processes for each stream of each run, late
lines, and tracebacks at Ctrl+C. Upstream: LocalComputeLogManager with `capture: false`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster._core.storage.local_compute_log_manager import CapturedLogContext, LocalComputeLogManager


class PrintedElsewhere(LocalComputeLogManager):
    """Keeps a sentence on that, which the page of the run shows."""

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "PrintedElsewhere":
        """Called by Dagster."""
        return cls(inst_data=inst_data, **config_value)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Iterator[CapturedLogContext]:
        """Called by Dagster."""
        kept = Path(self.get_captured_local_path(log_key, "out"))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("What this run printed is where it was started (a terminal, a notebook), not here.\n", "utf-8")
        yield CapturedLogContext(log_key)
        Path(self.complete_artifact_path(log_key)).touch()
