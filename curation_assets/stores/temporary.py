"""Names of files that are being written: hidden, beside their target, with host and process of their writer."""

import functools
import hashlib
import itertools
import os
import re
import socket
from pathlib import Path

from curation_assets.stores.processes import start_of

TEMPORARY = re.compile(
    r"^\.(?P<target>.+)\.tmp-(?P<host>[^-]+)-(?P<pid>\d+)-(?P<start>[0-9a-f]{4})[0-9a-f]{4}(\.[a-z0-9]+)*$"
)
_numbers = itertools.count()


def host() -> str:
    """Name of this machine as file names hold it."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


def temporary_path(target: Path) -> Path:
    """A hidden path beside `target` (same file system, so os.replace is atomic) that names its writer."""
    start, number = _own_start(os.getpid()), next(_numbers) & 0xFFFF
    return target.with_name(f".{target.name}.tmp-{host()}-{os.getpid()}-{start}{number:04x}{target.suffix}")


def start_digits(pid: int) -> str | None:
    """4 hex digits of when a process of this host began: after a reboot another one has its number. None where there
    is none."""
    start = start_of(pid)
    return None if start is None else hashlib.sha256(start.encode()).hexdigest()[:4]


@functools.lru_cache(maxsize=2)
def _own_start(pid: int) -> str | None:
    """Of this process; a child that was forked has another `pid`."""
    return start_digits(pid)
