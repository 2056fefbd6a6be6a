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
    r"\.(?P<target>.+)\.tmp-(?P<host>[^-]+)-(?P<pid>\d+)-(?P<start>[0-9a-f]{4})[0-9a-f]{4}(\.[a-z0-9]+)*"
)
_numbers = itertools.count()


def host() -> str:
    """Name of this machine as file names hold it."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


def temporary_path(target: Path) -> Path:
    """A hidden path beside `target` (same file system, so os.replace is atomic) that names its writer."""
    start, number = _own_start(os.getpid()), next(_numbers) & 0xFFFF
    return target.with_name(f".{target.name}.tmp-{host()}-{os.getpid()}-{start}{number:04x}{target.suffix}")


def has_ended(pid: int, start: str) -> bool:
    """Whether a writer on this host has ended, by the digits in its temporaries' names; another process may have its
    number, after a reboot above all."""
    now = start_of(pid)
    if now is not None:
        return _digits(now) != start
    try:
        os.kill(pid, 0)
    except PermissionError:  # of another user, and hidden from us (hidepid)
        return False
    except ProcessLookupError:
        pass
    return True


def _digits(start: str) -> str:
    return hashlib.sha256(start.encode()).hexdigest()[:4]


@functools.lru_cache(maxsize=2)
def _own_start(pid: int) -> str:
    """The start of this process as digits. `pid` is the cache's key: a forked child has another."""
    return _digits(start_of(pid) or "")
