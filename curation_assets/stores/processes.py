"""Processes, named so that another one with the same number is not taken for them."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessName:
    """A process of some host. A pid is given again, so its start belongs to the name."""

    host: str
    pid: int
    start: str

    @classmethod
    def own(cls) -> "ProcessName":
        """This process."""
        return cls(socket.gethostname(), os.getpid(), start_of(os.getpid()) or "")

    def has_ended(self) -> bool | None:
        """Whether it has ended; None where that cannot be seen from here (another host)."""
        return start_of(self.pid) != self.start if self.host == socket.gethostname() else None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def start_of(pid: int) -> str | None:
    """When a process began, equal for one process only; None where there is none.

    On Linux in ticks since a boot that is named: seconds since 1970 move when the clock is set.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").is_file():
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"  # state and start time, fields 3 and 22 of proc(5)
    import psutil

    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.NoSuchProcess:
        return None
