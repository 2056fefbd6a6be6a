"""A disk of a few kilobytes (tmpfs), where mounting is allowed: Linux, as root."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PAGE = 4096  # bytes: tmpfs counts in pages


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0


class SmallDisk:
    """A mounted disk whose size may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def used(self) -> int:
        """Bytes."""
        return shutil.disk_usage(self.folder).used

    def resize(self, size: int) -> None:
        """From now on so many bytes."""
        assert _mount("-o", f"remount,rw,size={max(size, PAGE)}", str(self.folder))

    def make_read_only(self) -> None:
        """From now on nothing can be written."""
        assert _mount("-o", "remount,ro", str(self.folder))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """A disk of `size` bytes at `folder`, which is made; taken away at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    assert _mount("-t", "tmpfs", "-o", f"size={size}", "small", str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@cache
def why_no_disk() -> str | None:
    """Why no disk can be mounted here; None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        return "mounting a disk needs Linux and root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder) / "disk", PAGE):
                return None
        except (AssertionError, subprocess.CalledProcessError):
            return "mounting is not allowed here (a container without CAP_SYS_ADMIN)"
