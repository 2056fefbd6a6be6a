"""sha256 of files: one function, one cache. A file is read again only when its size, time or inode changed."""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from curation_assets.stores.atomic import write_text_atomically

SHA256 = re.compile(r"^[0-9a-f]{64}$")
#: File systems keep times in steps of some milliseconds: a file this young may change again within one step.
TIME_STEP_NS = 100_000_000


def file_sha256(path: Path) -> str:
    """64 hex digits over a file's bytes, remembered within the process by (path, size, modification time, inode).

    Files of the hub cache are links to blobs that are named by their own sha256, checked at download: the name counts.
    Raises OSError for a file that cannot be read.
    """
    real = path.resolve()
    if path.is_symlink() and real.parent.name == "blobs" and SHA256.match(real.name):
        return real.name
    stat = real.stat()
    if time.time_ns() - stat.st_mtime_ns < TIME_STEP_NS:
        return _hash_file(real)
    return _remembered_hash(real, stat.st_size, stat.st_mtime_ns, stat.st_ino)


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=4096)
def _remembered_hash(path: Path, size: int, modified_ns: int, inode: int) -> str:
    return _hash_file(path)


def cached_sha256(paths: Sequence[Path], cache: Path) -> dict[str, str]:
    """Path → sha256, remembered in the JSON file `cache` by (size, modification time): for gigabytes of sources.

    Raises FileNotFoundError for a source that no longer exists.
    """
    known: dict[str, list[object]] = {}
    if cache.is_file():
        known = json.loads(cache.read_text(encoding="utf-8"))
    current: dict[str, list[object]] = {}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"source {path} is missing; put it back, or add the pool again with its new path")
        stat = path.stat()
        entry = known.get(str(path), [])
        if entry[:2] == [stat.st_size, stat.st_mtime_ns]:
            current[str(path)] = entry
        else:
            current[str(path)] = [stat.st_size, stat.st_mtime_ns, file_sha256(path)]
    if current != known:
        write_text_atomically(cache, json.dumps(current, indent=1, sort_keys=True))
    return {path: str(entry[2]) for path, entry in current.items()}
