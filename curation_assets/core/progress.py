"""Progress of long work: bars on a terminal, log lines elsewhere. The work itself only reports 'n more are done'."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[[int], None]


class ProgressReporter(Protocol):
    """Somewhere to show progress."""

    def task(self, label: str, total: int) -> AbstractContextManager[Advance]:
        """`with reporter.task(label, total) as advance:`; then `advance(n)` when n more are done."""
        ...

    def note(self, line: str) -> None:
        """A line beside the tasks: what the work waits for."""
        ...


class Silent:
    """Shows nothing: tests and library use."""

    @contextmanager
    def task(self, label: str, total: int) -> Iterator[Advance]:
        """Yield a function that does nothing."""
        yield lambda n: None

    def note(self, line: str) -> None:
        """Say nothing."""


class LogLines:
    """One line at the start, then at most one every `every_seconds`: for Dagster's log and for CI."""

    def __init__(self, log: Callable[[str], None], every_seconds: float = 15.0) -> None:
        self._log = log
        self._every_seconds = every_seconds

    @contextmanager
    def task(self, label: str, total: int) -> Iterator[Advance]:
        """Yield `advance(n)`."""
        done, start = 0, time.perf_counter()
        last = start

        def advance(n: int) -> None:
            nonlocal done, last
            done += n
            now = time.perf_counter()
            if now - last >= self._every_seconds:
                last = now
                self._log(f"{label}: {done}/{total} in {now - start:.0f} s")

        yield advance

    def note(self, line: str) -> None:
        """Log the line."""
        self._log(line)


class Bars:
    """Rich progress bars on a terminal. Tasks of several threads at once are lines of one display."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._progress: Progress | None = None  # while there is a task
        self._tasks = 0

    @contextmanager
    def task(self, label: str, total: int) -> Iterator[Advance]:
        """Yield `advance(n)`; the bar goes away when the task is done."""
        with self._lock:
            progress = self._progress = self._progress or self._begun()
            self._tasks += 1
        task = progress.add_task(label, total=total)
        try:
            yield lambda n: progress.advance(task, n)
        finally:
            with self._lock:
                self._tasks -= 1
                if self._tasks:
                    progress.remove_task(task)
                else:
                    progress.stop()
                    self._progress = None

    def _begun(self) -> Progress:
        columns = (
            TextColumn("    {task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=self._console, transient=True)
        progress.start()
        return progress

    def note(self, line: str) -> None:
        """Print the line above the bars."""
        self._console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)


EVERY_SECONDS = 15.0  # between two log lines of a task


def reporter_for(console: Console | None = None) -> ProgressReporter:
    """Bars on a terminal, log lines where not. Default: on standard error, which answers never share."""
    chosen = console or Console(stderr=True)
    if chosen.is_terminal:
        return Bars(chosen)
    return LogLines(lambda line: chosen.print(line, markup=False, highlight=False, soft_wrap=True), EVERY_SECONDS)
