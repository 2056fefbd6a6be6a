"""A note of work begun on a pool: written before the first change, removed after the last; who finds it finishes that.

A takedown, a retry and a repair have one each. What a killed call had done by then no longer shows in the pool.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from curation_assets.core.json_files import read_json
from curation_assets.core.seal import sealed_json
from curation_assets.stores.atomic import fetch, write_text_atomically

T = TypeVar("T")


def write_begun(path: Path, content: Any, *, mode: int | None = None) -> None:
    """Write down what is begun. `mode`: of the file, where it quotes samples."""
    write_text_atomically(path, sealed_json(content), mode=mode)


def read_begun(path: Path, build: Callable[[Any], T], *, advice: str) -> T | None:
    """What was begun and not finished; None where there is nothing. Raises what `read_json` raises."""
    fetch(path)
    return read_json(path, build, advice=advice) if path.is_file() else None
