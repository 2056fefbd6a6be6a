"""Commands that the package's own texts advise: they exist, parse, and keep the home of the call that gave them."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from curation_assets.cli import commands
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY

PACKAGE = REPOSITORY / "curation_assets"
#: Commands in backquotes, as every message and page of the package writes them. A value that is filled in reads VALUE.
ADVISED = re.compile(r"`(?:[A-Z_]+=\S+ )?curate ([^`]+)`")
UNQUOTED = re.compile(r"(?:Next\b[^`\n]{0,40}|[Rr]un |[Tt]ry |; |: )\bcurate [a-z]")


def texts(path: Path) -> Iterator[str]:
    """What a file of the package may print: its string literals, or its lines where it is no Python."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield re.sub(r"\{\{.*?\}\}", "VALUE", content)
        return
    tree = ast.parse(content)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


FILES = [
    path
    for pattern in ("*.py", "*.jinja", "*.yaml", "*.html")
    for path in sorted(PACKAGE.rglob(pattern))
    if "embedded" not in path.parts
]


@cache
def printed() -> list[tuple[Path, str]]:
    """Every text of every file."""
    return [(path, text) for path in FILES for text in texts(path)]


def advised() -> set[tuple[str, str]]:
    """Each command that a text advises, and the file that it is in."""
    return {
        (" ".join(line.split()), path.relative_to(PACKAGE).as_posix())
        for path, text in printed()
        for line in ADVISED.findall(text)
        if "--help" not in line and path.name not in ("commands.py", "common.py")  # which complete or refuse others'
    }


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words begin with, as Typer builds it, and what follows its name."""
    names = {entry.name: entry for entry in commands.entries()}
    for count in (2, 1):
        entry = names.get(" ".join(words[:count]))
        if entry is not None:
            single = typer.Typer(add_completion=False)
            single.command()(commands.load(entry))
            return typer.main.get_command(single), words[count:]
    raise AssertionError(f"there is no command curate {' '.join(words[:2])}")


def faults(line: str) -> list[str]:
    """What is wrong with a line: unknown options, values that are missing, too few or too many arguments."""
    if line.split()[0] in commands.GROUPS and len(line.split()) == 1:
        return []
    command, rest = command_of(shlex.split(line.replace("…", "VALUE")))
    options = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    found, positional, rest = [], 0, list(rest)
    is_name = not rest  # the command as such
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            positional += 1
            continue
        name, equals, _ = word.partition("=")
        if name not in options:
            found.append(f"no option {name}")
        elif not options[name].is_flag and not equals:
            found += [] if rest and not rest[0].startswith("--") else [f"{name} without a value"]
            rest = rest[1:]
    needed = sum(argument.required for argument in arguments)
    if positional < needed and not is_name:
        found.append(f"{positional} arguments, needed: {' '.join(argument.name for argument in arguments)}")
    if positional > len(arguments) and all(argument.nargs != -1 for argument in arguments):
        found.append(f"{positional} arguments, at most {len(arguments)}")
    return found


@pytest.mark.slow
def test_every_advised_command_parses() -> None:
    found = {(line, path): faults(line) for line, path in advised()}
    assert len(found) > 60
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


def advice(result: Result) -> list[list[str]]:
    """Words of the commands that a call advised."""
    return [shlex.split(line) for line in ADVISED.findall(result.output)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("pool", "add", "mine", "TARS"),
        ("diff", "icc", "clip"),
        ("diff", "icc", "clip", "--pool", "photos"),
        ("refit", "photos"),
        ("show", "lineage", "icc", "--pool", "photos"),
        ("release", "list"),
        ("release", "show", "none"),
        ("why", "none"),
        ("export", "keys", "icc", "--pool", "photos", "--out", "OUT"),
        ("run", "photos", "--table", "raw/lookup"),
    ],
    ids=" ".join,
)
def test_advised_commands_keep_the_home_and_run(words: tuple[str, ...], tmp_path: Path) -> None:
    home = tmp_path / "a home [a-b]"
    webdataset_pool(home, shards=1)
    filled = {"TARS": str(home / "tars"), "OUT": str(tmp_path / "out")}
    given = advice(curate(*(filled.get(word, word) for word in words), home=home))
    assert given or words[0] in ("why", "export")
    for line in given:
        if line[0] == "ui":
            continue  # serves until it is stopped
        assert not commands.takes_home(line) or line[-2:] == ["--home", str(home)]
        named = {"POOL": "photos", "SUBSET": "icc", "NAME": "v1"}
        line = [named.get(word, word) for word in line]
        if line[0] in ("run", "refit"):  # what it would do, without the minutes
            table = [line.index("--table")] if "--table" in line else []
            line = ["plan", *(word for at, word in enumerate(line[1:], 1) if not table or at - table[0] not in (0, 1))]
        status = curate(*line).exit_code
        assert status == 0 or (line[0] == "release" and status == 1)  # a release needs a pool that has run


def test_the_default_home_is_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_HOME", str(tmp_path))
    webdataset_pool(tmp_path, shards=1)
    added = curate("pool", "add", "mine", tmp_path / "tars")
    assert "Next: `curate run mine` (" in added.output


def test_the_search_finds_what_it_should() -> None:
    assert faults("plan --refresh") == ["0 arguments, needed: pool"]
    assert faults("run POOL --nothing") == ["no option --nothing"]
    assert faults("show cost a b c d") != []
    assert faults("run POOL --shards") == ["--shards without a value"]
    with pytest.raises(AssertionError, match="no command curate word-weights"):
        faults("word-weights POOL")


def test_advised_commands_stand_in_backquotes() -> None:
    """So that they are found here, and that the home is added to them."""
    assert [place for place in printed() if UNQUOTED.search(place[1])] == []
