"""Reading word lists: YAML files beside the code, lists as tuples so that they cannot be changed; drawing of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml


def read_word_lists(path: Path) -> dict[str, Any]:
    """Name → tuple of phrases, or mapping of such, in the order of the file.

    Raises ValueError for anything that is neither text, list nor mapping (a bare `no` or a number needs quotes).
    """
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: _frozen(value, f"{path.name}: {name}") for name, value in content.items()}


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    """One of the options, uniformly."""
    return options[int(rng.integers(len(options)))]


def _frozen(value: Any, location: str) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple(_frozen(entry, location) for entry in value)
    if isinstance(value, dict):
        return {str(key): _frozen(entry, f"{location}.{key}") for key, entry in value.items()}
    raise ValueError(f"{location}: expected text, lists and mappings of text, got {value!r}; put it into quotes")
