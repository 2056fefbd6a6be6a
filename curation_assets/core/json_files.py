"""JSON files of a home: what cannot be read, or is not what was written (seal.py), is an error that names the file, the
line, and what to do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from curation_assets.core.errors import StoreError
from curation_assets.core.seal import unsealed

T = TypeVar("T")


class DamagedFileError(StoreError, ValueError):
    """A file of the home does not hold what this program writes into it."""


def read_json(path: Path, build: Callable[[Any], T], *, advice: str) -> T:
    """What `build` makes of the content of a file, without its seal; `dict` and `list` want one.

    Raises DamagedFileError, with `advice`, for what is no JSON, no UTF-8, not what was sealed, or not what `build`
    takes.
    """
    return _built(path.read_bytes(), build, str(path), advice)


def read_json_lines(path: Path, build: Callable[[Any], T], *, advice: str) -> list[T]:
    """The same of every line, blank ones left out; nothing where there is no file."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    return [
        _built(line, build, f"{path}, line {number},", advice) for number, line in enumerate(lines, 1) if line.strip()
    ]


def _built(data: bytes, build: Callable[[Any], T], place: str, advice: str) -> T:
    try:
        content = unsealed(json.loads(data), data)
        if isinstance(build, type) and issubclass(build, dict | list) and not isinstance(content, build):
            raise TypeError(f"got a {type(content).__name__}, expected a {build.__name__}")
        return build(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{place} is damaged ({type(error).__name__}: {error}); {advice}") from error
