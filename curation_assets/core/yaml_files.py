"""YAML that people write: what cannot be read, or would grow without end, is an error that names its place."""

from pathlib import Path
from typing import Any

import yaml

MAX_VALUES = 200_000  # of a text once its aliases stand for what they name; the largest we ship has 4,000


def read_yaml(path: Path) -> Any:
    """The content of a file. Raises ValueError, with file and line, for what is no YAML or no UTF-8, for values nested
    too deeply and for aliases that stand for more than MAX_VALUES values.
    """
    return parse_yaml(path.read_bytes(), str(path))


def parse_yaml(text: str | bytes, place: str) -> Any:
    """The content of a text; `place` names it in errors. Raises what `read_yaml` raises."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        count = _values(node, {})
        if count > MAX_VALUES:
            raise ValueError(f"its aliases stand for {count:.0e} values, at most {MAX_VALUES:,} are read")
        return loader.construct_document(node)
    except RecursionError as error:
        raise ValueError(f"{place} is no YAML: its values are nested too deeply; correct it") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(f"{place} is no YAML: {' '.join(str(error).split())}; correct it") from error


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Values of a node, what its aliases stand for counted each time; `known`: of nodes that were counted (by id).

    Raises ValueError for a value inside itself.
    """
    if id(node) not in known:
        known[id(node)] = 0  # under way
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        inner = node.value if isinstance(node, yaml.SequenceNode) else [one for pair in pairs for one in pair]
        known[id(node)] = 1 + sum(_values(one, known) for one in inner)
    if known[id(node)] == 0:
        raise ValueError(f"an alias inside what it names, line {node.start_mark.line + 1}")
    return known[id(node)]
