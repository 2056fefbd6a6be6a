"""Peak memory of this process and its workers together, sampled."""

import threading
from types import TracebackType

import psutil


class PeakMemory:
    """`with PeakMemory() as peak: …; peak.gib`: highest sum of resident memory over the process tree.

    Pages that processes share are counted once per process, so the figure is an upper bound.
    """

    def __init__(self, every_seconds: float = 0.5) -> None:
        self._every_seconds = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.gib = 0.0

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            resident = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    resident += process.memory_info().rss
                except psutil.NoSuchProcess:  # a worker that ended between listing and asking
                    continue
            self.gib = max(self.gib, resident / 2**30)
            if self._stop.wait(self._every_seconds):
                return
