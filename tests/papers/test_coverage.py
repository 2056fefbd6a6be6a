"""The page of the papers: every item has a mark, and every printed number is the one of the data file."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.papers.__main__ import app
from benchmarks.papers.coverage import NOT_ON_RECORD, check_item, coverage, page_lines, write_page
from benchmarks.papers.tables import MAKERS
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "user" / "papers.md"
NUMBERS = REPOSITORY / "benchmarks" / "papers" / "printed.yaml"
MARKS = {"filled by command", "partly", "not"}


def tables_below(text: str, heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading, its head first; empty where there is none."""
    part = text.partition(f"\n{heading}\n")[2].split("\n#", 1)[0]
    rows = [line.strip("|").split("|") for line in part.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set("".join(row)) <= set("-")]


def test_every_item_of_the_page_has_a_mark_a_command_and_a_reason() -> None:
    text = PAGE.read_text(encoding="utf-8")
    papers = re.findall(r"^### (.+ \(.+\).*)$", text.partition("<!-- coverage")[2], flags=re.MULTILINE)
    assert papers == list(coverage())
    assert len(papers) == 5
    seen = 0
    for paper in papers:
        head, *rows = tables_below(text, f"### {paper}")
        assert head == ["item", "shows", "mark", "command", "what differs", "why not"]
        for item, shows, mark, command, differs, why in rows:
            assert mark in MARKS, (paper, item)
            assert item
            assert shows
            assert (command != "–" and differs != "–") or mark == "not", (paper, item)
            assert (why != "–") or mark == "filled by command", (paper, item)
            seen += 1
    assert seen == sum(map(len, coverage().values())) > 40


def test_every_printed_number_of_the_page_is_that_of_the_data_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    content: dict[str, dict[str, Any]] = yaml.safe_load(NUMBERS.read_text(encoding="utf-8"))
    numbers = 0
    for name, printed in content.items():
        heading = f"### {name}: {printed['title']}"
        assert f"\n{heading}\n" in text, name
        found = tables_below(text, heading)
        rows = printed.get("rows", [])
        assert max(0, len(found) - 1) == len(rows), name
        if not rows:
            continue
        columns = [column.removesuffix(", %") for column in found[0]]
        assert set(columns) == {column.replace("_", " ") for row in rows for column in row}, name
        assert {column[:-3] for column in found[0] if column.endswith(", %")} == {
            column.replace("_", " ") for column in printed.get("percent", [])
        }, name
        for cells, row in zip(found[1:], rows, strict=True):
            shown = dict(zip(columns, cells, strict=True))
            for column, value in row.items():
                cell = shown.pop(column.replace("_", " "))
                if value is None:
                    assert cell == NOT_ON_RECORD
                elif isinstance(value, str):
                    assert cell == value
                else:
                    assert float(cell.replace(",", "")) == value, (name, column)
                    numbers += 1
            assert set(shown.values()) <= {"–"}, (name, shown)
    assert numbers > 250


def test_every_table_of_the_data_file_belongs_to_an_item_and_every_command_exists() -> None:
    items = [item for of_paper in coverage().values() for item in of_paper]
    content = yaml.safe_load(NUMBERS.read_text(encoding="utf-8"))
    assert {name for item in items for name in item.get("values", ())} == set(content)
    tables = {name for item in items for name in re.findall(r"--table (\S+)", item.get("command", ""))}
    assert tables == set(MAKERS)
    group = {command.name for command in app.registered_commands}
    for item in items:
        command = item.get("command", "")
        if command and not command.startswith(("python ", "curate ", "evaluate ")):
            assert command.split()[0] in group, item["item"]


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    text = PAGE.read_text(encoding="utf-8")
    page.write_text(text.replace("| 34.03 |", "| 35.03 |"), encoding="utf-8")
    result = CliRunner().invoke(app, ["--coverage", "--into", str(page)])
    assert result.exit_code == 0, result.output
    assert page.read_text(encoding="utf-8") == text, "`make docs` writes docs/user/papers.md again"
    shown = CliRunner().invoke(app, ["--coverage"]).stdout
    assert "tables and figures: filled by command" in " ".join(shown.split())
    assert CliRunner().invoke(app, ["--into", str(page)]).exit_code == 1
    page.write_text("# A page without marks\n", encoding="utf-8")
    with pytest.raises(ValueError, match="once each"):
        write_page(page)
    assert all("\n" not in line for line in page_lines())


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ({"item": "Table 1", "shows": "x"}, "expected a mark of filled, partly, not, got None"),
        ({"item": "Table 1", "shows": "x", "mark": "done"}, "got 'done'"),
        ({"item": "Table 1", "shows": "x", "mark": "partly", "command": "a", "differs": "b"}, "lacks why"),
        ({"item": "Table 1", "shows": "x", "mark": "filled"}, "lacks command, differs"),
        ({"item": "Table 1", "shows": "x", "mark": "not", "why": "y", "note": "z"}, "'note' is no field"),
        ({"item": "Table 1", "shows": "x", "mark": "not", "why": "y", "values": ["icc11"]}, "no table 'icc11'"),
    ],
)
def test_an_item_without_what_its_mark_needs_is_refused(item: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_item("ICC", item)
