"""Peak memory of this process and its workers together, sampled."""

import threading
import time
from types import TracebackType

import psutil

READING_SHARE = 0.02  # of the time goes to readings: the kernel walks every page of every process for one


class PeakMemory:
    """`with PeakMemory() as peak: …; peak.gib`: highest memory in use by the process tree.

    On Linux the proportional set size: pages that processes share count once. Elsewhere resident memory, in which they
    count once per process. Read every second, less often where a reading takes long (5 s at .1 s), so a peak between
    two readings is missed.
    """

    def __init__(self, every_seconds: float = 1.0) -> None:
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
            started = time.perf_counter()
            for process in (me, *me.children(recursive=True)):
                try:
                    full = process.memory_full_info()
                    resident += getattr(full, "pss", full.rss)
                except (psutil.NoSuchProcess, psutil.AccessDenied):  # a worker that ended between listing and asking
                    continue
            self.gib = max(self.gib, resident / 2**30)
            pause = max(self._every_seconds, (time.perf_counter() - started) / READING_SHARE)
            if self._stop.wait(pause):
                return
