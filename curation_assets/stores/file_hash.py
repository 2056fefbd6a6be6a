"""sha256 of files: one function, one cache. A file is read again only when its state on the disk changed."""

import contextlib
import functools
import hashlib
import lzma
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

from curation_assets.core.seal import read_sealed_json
from curation_assets.core.settings import cache_root
from curation_assets.stores.atomic import fetch
from curation_assets.stores.documents import save_document

T = TypeVar("T")
SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")
#: File systems keep times in steps of some milliseconds: a file this young may change again within one step.
TIME_STEP_NS = 100_000_000
#: The hashes of larger files outlive the process, in the user's cache: a gigabyte takes seconds.
LARGE_BYTES = 256 * 2**20
#: Large texts of shipped models are packed; NAME.xz counts as NAME everywhere but in the pins of files.
PACKED = ".xz"
MAX_UNPACKED_BYTES = 256 * 2**20


@dataclass(frozen=True)
class FileState:
    """What changes with a file's bytes. Whoever writes a file may set its modification time back, but not the time of
    its last change of any kind, `changed_ns`."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path | str) -> "FileState":
        """The state of a file now. Raises OSError."""
        stat = os.stat(path)
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)

    @property
    def is_settled(self) -> bool:
        """Whether another change would show: a file that was changed a moment ago may change within one step."""
        return time.time_ns() - self.changed_ns >= TIME_STEP_NS


def once_per_version(kept: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Results of `function(path, …)`, the `kept` latest, while the files are what they were. Raises OSError for one
    that is not there."""

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        @functools.lru_cache(maxsize=kept)
        def of_version(path: Path, state: FileState, *others: object) -> T:
            return function(path, *others)

        @functools.wraps(function)
        def latest(path: Path, *others: object) -> T:
            return of_version(path, FileState.of(path), *others)

        return latest

    return decorated


def file_sha256(path: Path) -> str:
    """64 hex digits over a file's bytes, remembered by its state on the disk (see `remembered`).

    Files of the hub cache are links to blobs that are named by their own sha256: the name counts, and `blob_damage`
    checks it. Raises OSError for a file that cannot be read.
    """
    real = path.resolve()
    if _is_blob(path, real) and SHA256.fullmatch(real.name):
        return real.name
    return remembered(sha256_now, real)


def sha256_now(path: Path) -> str:
    """64 hex digits over a file's bytes, read now; from a bucket it is fetched."""
    fetch(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpacked(path: Path) -> bytes:
    """A file's bytes; of NAME.xz what was packed. Raises OSError, ValueError for a packed file that is damaged or holds
    more than MAX_UNPACKED_BYTES."""
    if path.suffix != PACKED:
        return path.read_bytes()
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        content = reader.decompress(path.read_bytes(), MAX_UNPACKED_BYTES)
    except lzma.LZMAError as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from error
    if not reader.eof:
        raise ValueError(f"{path} is cut short, or holds more than {MAX_UNPACKED_BYTES:,} bytes")
    return content


def unpacked_sha256(path: Path) -> str:
    """64 hex digits over `unpacked`, remembered as `file_sha256`."""
    return file_sha256(path) if path.suffix != PACKED else remembered(_unpacked_sha256_now, path.resolve())


def _unpacked_sha256_now(path: Path) -> str:
    return hashlib.sha256(unpacked(path)).hexdigest()


def remembered(compute: Callable[[Path], str], path: Path) -> str:
    """`compute(path)`, once in a process while the file's state is the same.

    What large files gave is kept in the user's cache, for the next process.
    """
    now = FileState.of(path)
    if not now.is_settled:
        return compute(path)
    state = (compute.__qualname__, path.stat().st_dev, now.inode, now.size, now.modified_ns, now.changed_ns)
    key = hashlib.blake2b(repr(state).encode(), digest_size=16).digest()
    if key not in _known:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[key] = sys.intern(compute(path) if now.size < LARGE_BYTES else _kept_on_disk(compute, path, state))
    return _known[key]


_known: dict[bytes, str] = {}  # digest of a file's state → its hash
MAX_KNOWN = 65_536


def _kept_on_disk(compute: Callable[[Path], str], path: Path, state: tuple[str, int, int, int, int, int]) -> str:
    name = hashlib.sha256(repr(state[:3]).encode()).hexdigest()[:32]  # one per inode: a changed file replaces its own
    cache = cache_root() / "hashes" / f"{name}.json"
    known = read_sealed_json(cache)
    if known is not None and known["file"] == list(state):
        return str(known["hash"])
    made = compute(path)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        save_document(cache, {"file": state, "hash": made})
    return made


# -- the hub's cache --------------------------------------------------------------------------------------------------


def _is_blob(path: Path, real: Path) -> bool:
    return path.is_symlink() and real.parent.name == "blobs"


def blob_damage(path: Path, *, fresh: bool = False) -> tuple[str, str] | None:
    """(expected, got) of a file of the hub's cache whose content is not what its blob is named by; None where it is.

    Blobs are named by their sha256, small files by git's sha1. `fresh`: read now, whatever is remembered.
    """
    if not path.is_symlink() or not _is_blob(path, real := path.resolve()):
        return None
    if SHA256.fullmatch(real.name):
        compute = sha256_now
    elif _GIT_SHA1.fullmatch(real.name):
        compute = _git_sha1
    else:
        return None
    got = compute(real) if fresh else remembered(compute, real)
    return None if got == real.name else (real.name, got)


def _git_sha1(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# -- sources ----------------------------------------------------------------------------------------------------------


def cached_sha256(paths: Sequence[Path], cache: Path) -> dict[str, str]:
    """Path → sha256, remembered in the JSON file `cache` by their states on the disk: for gigabytes of sources.

    A damaged cache counts as none. Raises FileNotFoundError for a source that no longer exists.
    """
    known: dict[str, list[object]] = (read_sealed_json(cache) or {}).get("files", {})
    current: dict[str, list[object]] = {}
    for path in paths:
        fetch(path)
        if not path.is_file():
            raise FileNotFoundError(f"source {path} is missing; put it back, or add the pool again with its new path")
        size, modified_ns, *changed = astuple(state := FileState.of(path))
        entry = known.get(str(path), [])  # size, modification time, sha256, then what else tells the state
        if [*entry[:2], *entry[3:]] == list(astuple(state)):
            sha256 = entry[2]
        else:
            settled, sha256 = state.is_settled, sha256_now(path)
            changed = changed if settled else [0, 0]  # read once more next time
        current[str(path)] = [size, modified_ns, sha256, *changed]
    if current != known:
        save_document(cache, {"files": current})
    return {path: str(entry[2]) for path, entry in current.items()}
