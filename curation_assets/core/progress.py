"""Progress of long work: bars on a terminal, log lines elsewhere. The work itself only reports 'n more are done'."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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

from curation_assets.core.visible import Terminal

Advance = Callable[[float], None]  # a part of one is a piece of work that is not finished yet


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


class Fraction:
    """How far the tasks of one call are, all together, as one number of [0, 1]: for another process that shows it."""

    def __init__(self, put: Callable[[float], None]) -> None:
        self._put = put
        self._done, self._total = 0.0, 0

    @contextmanager
    def task(self, label: str, total: int) -> Iterator[Advance]:
        """Yield `advance(n)`."""
        self._total += total

        def advance(n: float) -> None:
            self._done += n
            self._put(min(1.0, self._done / max(1, self._total)))

        yield advance

    def note(self, line: str) -> None:
        """Say nothing: what a call waits for, its own process does not show."""


@dataclass
class _Task:
    label: str
    total: int
    start: float  # seconds
    done: float = 0.0

    def line(self, now: float) -> str:
        """How much is done and, of a task in which something is, when it may end."""
        passed = now - self.start
        text = f"{self.label}: {int(self.done)}/{self.total}"
        if passed < 1:
            return text
        left = "" if not self.done else f", about {span(passed / self.done * max(0, self.total - self.done))} left"
        return f"{text} in {span(passed)}{left}"


def span(seconds: float) -> str:
    """A duration to two digits or so: 45 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class LogLines:
    """A line when work begins, then one every EVERY_SECONDS, of all tasks together: for Dagster's log and for CI.

    After a quarter of an hour's work they come more and more rarely, down to one in MAX_PAUSE_SECONDS. `beats`: lines
    come also while no step ends (a model is loaded, a batch takes minutes), from a thread of their own. `clock`
    gives seconds.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        *,
        beats: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._beats = beats
        self._clock = clock
        self._lock = threading.RLock()
        self._open: list[_Task] = []  # the outermost first
        self._ended: threading.Event | None = None  # of the thread, while there is a task
        self._due = -math.inf  # when the next line may come

    @contextmanager
    def task(self, label: str, total: int) -> Iterator[Advance]:
        """Yield `advance(n)`."""
        task = _Task(label, total, self._clock())
        with self._lock:
            self._open.append(task)
            if self._beats and self._ended is None:
                self._ended = threading.Event()
                threading.Thread(target=self._beat, args=(self._ended,), name="progress", daemon=True).start()
        self.tick()

        def advance(n: float) -> None:
            task.done += n
            self.tick()

        try:
            yield advance
        finally:
            with self._lock:
                self._open.remove(task)
                if not self._open and self._ended is not None:
                    self._ended.set()
                    self._ended = None

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            self.tick()

    def tick(self) -> None:
        """Log how far the open tasks are, if it is time to."""
        with self._lock:
            now = self._clock()
            tasks = [task for task in self._open if task.total]
            if not tasks or now < self._due:
                return
            passed = now - tasks[0].start
            self._due = now + max(EVERY_SECONDS, min(passed / 60, MAX_PAUSE_SECONDS))
            more = f"; and {len(tasks) - SHOWN_TASKS} more" if len(tasks) > SHOWN_TASKS else ""
            line = "; ".join(task.line(now) for task in tasks[:SHOWN_TASKS]) + more
        self._log(line)

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


EVERY_SECONDS = 15.0  # between two log lines
MAX_PAUSE_SECONDS = 120.0
SHOWN_TASKS = 3  # in one line


def reporter_for(console: Console | None = None) -> ProgressReporter:
    """Bars on a terminal, log lines where not. Default: on standard error, which answers never share."""
    chosen = console or Terminal(stderr=True)
    if chosen.is_terminal:
        return Bars(chosen)
    return LogLines(lambda line: chosen.print(line, markup=False, highlight=False, soft_wrap=True), beats=True)
