"""Files and folders that appear whole or not at all."""

import contextlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

#: Whether a writer on another host lives cannot be checked: its leftovers are stale after a day.
FOREIGN_STALE_SECONDS = 24 * 3600.0

_TEMPORARY = re.compile(r"^\.(?P<target>.+)\.tmp-(?P<host>[^-]+)-(?P<pid>\d+)-[0-9a-f]{8}(?P<suffix>(\.[a-z0-9]+)*)$")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


def temporary_path(target: Path) -> Path:
    """A hidden path beside `target` (same file system, so os.replace is atomic) that names its writer."""
    return target.with_name(f".{target.name}.tmp-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}{target.suffix}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_stale(target: Path) -> list[Path]:
    """Delete what dead writers of `target` left; the temporaries of living ones stay. Returns the removed paths."""
    removed = []
    for path in sorted(target.parent.glob(f".{target.name}.tmp-*")):
        match = _TEMPORARY.match(path.name)
        if match is None or match["target"] != target.name:
            continue
        if match["host"] == _host():
            is_stale = not _is_alive(int(match["pid"]))
        else:
            is_stale = time.time() - path.lstat().st_mtime > FOREIGN_STALE_SECONDS
        if is_stale:
            remove_path(path)
            removed.append(path)
    return removed


def remove_path(path: Path) -> None:
    """Delete a file, link or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Write to the path given; on success it becomes `target` in one step, on an exception it vanishes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    temporary = temporary_path(target)
    try:
        yield temporary
        os.replace(temporary, target)
    except BaseException:
        remove_path(temporary)
        raise


PRIVATE = 0o600  # readable by its owner alone


def write_text_atomically(target: Path, text: str, *, mode: int | None = None) -> None:
    """`text` as UTF-8, whole or not at all. `mode`: permissions, set before the file has any content."""
    with replacing(target) as temporary:
        if mode is not None:
            temporary.touch(mode)
            temporary.chmod(mode)
        temporary.write_text(text, encoding="utf-8")
