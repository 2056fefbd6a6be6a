"""The package keeps to its budget: tokens per room, stated in pyproject.toml, without comments and docstrings."""

import ast
import io
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

from tests.support.paths import REPOSITORY

PACKAGE = REPOSITORY / "curation_assets"
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
#: A budget that is not used is none: what leaves a room leaves its budget, too.
UNUSED = 0.04


def tokens_of(path: Path) -> int:
    """Tokens of a file of Python, without comments, docstrings and layout."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    lines = {node.body[0].lineno for node in nodes if ast.get_docstring(node) is not None}
    docstrings = {(line, tokenize.STRING) for line in lines}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in LAYOUT and (token.start[0], token.type) not in docstrings for token in tokens)


def used() -> Counter[str]:
    """Tokens of each room, and of the files beside them."""
    counts: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        below = path.relative_to(PACKAGE).parts
        counts[below[0] if len(below) > 1 else "beside the rooms"] += tokens_of(path)
    return counts


def test_each_room_keeps_to_its_budget() -> None:
    budget = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["curation_assets"]["tokens"]
    counts = used()
    assert set(counts) == set(budget)
    over = {room: f"{counts[room]:,} of {budget[room]:,}" for room in budget if counts[room] > budget[room]}
    assert not over, f"raise the budget in pyproject.toml and name what leaves in the commit: {over}"
    least = {room: (1 - UNUSED) * tokens - 100 for room, tokens in budget.items()}
    unused = {room: f"{counts[room]:,} of {budget[room]:,}" for room in budget if counts[room] < least[room]}
    assert not unused, f"lower the budget in pyproject.toml to what is used: {unused}"
