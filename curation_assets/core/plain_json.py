"""Infinite numbers in JSON, which has none: they are the texts that JavaScript and Python both read as numbers."""

import math
from collections.abc import Mapping
from typing import Any

INFINITE = ("Infinity", "-Infinity")


def plain(content: Any) -> Any:
    """`content` for a JSON writer: infinite numbers as "Infinity" or "-Infinity", NaN as null, tuples as lists."""
    if isinstance(content, float) and not math.isfinite(content):
        return None if math.isnan(content) else INFINITE[content < 0]
    if isinstance(content, Mapping):
        return {key: plain(value) for key, value in content.items()}
    return [plain(value) for value in content] if isinstance(content, list | tuple) else content


def number(value: Any) -> Any:
    """A number as `plain` wrote it; anything else as it is."""
    return float(value) if value in INFINITE else value
