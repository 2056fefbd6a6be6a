"""Edits of a declaration: one value is replaced where it stands in the file, so that comments and order stay."""

from collections.abc import Sequence
from typing import Any

import yaml


def with_value(text: str, keys: Sequence[str], value: Any) -> str:
    """A YAML mapping with the value at `keys` (nested) replaced or added. Raises ValueError where that cannot be done
    without changing anything else.
    """
    node = yaml.compose(text, yaml.SafeLoader)
    expected = yaml.safe_load(text)
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"expected a mapping, got {type(expected).__name__}")
    edited = _edited(text, node, list(keys), value)
    wanted = expected
    for key in keys[:-1]:
        wanted[key] = wanted.get(key) or {}
        wanted = wanted[key]
    wanted[keys[-1]] = value
    try:
        made = yaml.safe_load(edited)
    except yaml.YAMLError:
        made = None
    if made != expected:
        raise ValueError(f"{'.'.join(keys)} cannot be set in a file that is written like this; edit it by hand")
    return edited


def _edited(text: str, node: yaml.MappingNode, keys: list[str], value: Any) -> str:
    key, *rest = keys
    name, found = next(((name, child) for name, child in node.value if name.value == key), (None, None))
    if rest and isinstance(found, yaml.MappingNode):
        return _edited(text, found, rest, value)
    for inner in reversed(rest):
        value = {inner: value}
    if (
        name is not None and found is not None
    ):  # behind the colon; what lies before the old value, such as comments, stays
        colon = text.index(":", name.end_mark.index) + 1
        between = text[colon : found.start_mark.index]
        return text[:colon] + " " + _flow(value) + (between if between.strip() else "") + text[_end(text, found) :]
    entry = f"{_flow(key)}: {_flow(value)}"
    if node.flow_style:
        start = node.start_mark.index + 1
        return text[:start] + entry + (", " if node.value else "") + text[start:]
    end = text.find("\n", _end(text, node))  # behind the comment of the last line
    end = len(text) if end == -1 else end
    return text[:end] + "\n" + " " * node.start_mark.column + entry + text[end:]


def _end(text: str, node: yaml.Node) -> int:
    """Where the text of a node ends; PyYAML counts what follows a block, such as comments, to it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    start = node.start_mark.index
    return start + len(text[start : node.end_mark.index].rstrip())


def _flow(value: Any) -> str:
    """On one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("...\n").strip()
