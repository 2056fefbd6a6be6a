"""The tutorial's page is its script, and its commands do what its code does (test_blocks.py runs the page)."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs" / "contributor"))

from render_tutorial import PAGE, SCRIPT, cells

from tests.support.command import curate


def test_the_page_has_the_script_s_texts_and_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    position = 0
    for _, content in cells(SCRIPT.read_text(encoding="utf-8")):
        position = page.find(content, position)
        assert position >= 0, f"run docs/contributor/render_tutorial.py: the page lacks\n{content}"


def test_the_page_names_a_command_for_every_step() -> None:
    assert [line.split()[1:3] for line in commands()] == [
        ["pool", "add"],
        ["pool", "set"],
        ["run", "photos"],
        ["why", "ID"],
        ["diff", "icc"],
        ["diff", "icc"],
        ["export", "webdataset"],
    ]


def commands() -> list[str]:
    """The commands of the page's prose, in order."""
    prose = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for line in re.findall(r"`(curate [^`]+)`", prose) if len(line.split()) > 2]


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_order_on_a_fresh_home(tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    _, first = next(cell for cell in cells(SCRIPT.read_text(encoding="utf-8")) if cell[0] == "code")
    exec(compile(first, str(SCRIPT), "exec"), made)  # draws the photographs
    home, out = tmp_path / "home", tmp_path / "out"
    for line in commands():
        words = shlex.split(line)[1:]
        words = [str(out if before == "--out" else home) if word == "DIR" else word for before, word in _pairs(words)]
        words = [str(made["photos"]) if word == "/data/photos" else word for word in words]
        if "ID" in words:
            samples = pl.read_parquet(home / "work" / "photos" / "raw" / "samples" / "*" / "data.parquet")
            words[words.index("ID")] = samples["sample_id"][0]
        if "--home" not in words:
            words += ["--home", str(home)]
        ran = curate(*words)
        assert ran.exit_code == 0, (line, ran.output[-1000:])
    assert list(out.glob("*.tar"))


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words], words, strict=False))
