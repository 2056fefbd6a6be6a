"""sha256 of large source files, computed again only when size or time of change differ."""

import json
from collections.abc import Sequence
from pathlib import Path

from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.content_hash import file_sha256


def cached_sha256(paths: Sequence[Path], cache: Path) -> dict[str, str]:
    """Path → sha256, remembered in the JSON file `cache` by (size, modification time).

    Raises FileNotFoundError for a source that went away.
    """
    known: dict[str, list[object]] = {}
    if cache.is_file():
        known = json.loads(cache.read_text(encoding="utf-8"))
    current: dict[str, list[object]] = {}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"the source {path} is gone; put it back, or add the pool again with its new place")
        stat = path.stat()
        entry = known.get(str(path), [])
        if entry[:2] == [stat.st_size, stat.st_mtime_ns]:
            current[str(path)] = entry
        else:
            current[str(path)] = [stat.st_size, stat.st_mtime_ns, file_sha256(path)]
    if current != known:
        write_text_atomically(cache, json.dumps(current, indent=1, sort_keys=True))
    return {path: str(entry[2]) for path, entry in current.items()}
