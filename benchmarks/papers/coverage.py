"""Every table and figure of the five papers with a mark, and the printed numbers: the page docs/user/papers.md.

Marks lie in coverage.yaml, numbers in printed.yaml; a paper's item never stands here without a mark.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.papers.tables import LABELS, printed_tables
from curation_assets.stores.documents import save_text

COVERAGE_FILE = Path(__file__).with_name("coverage.yaml")
MARKS = {"filled": "filled by command", "partly": "partly", "not": "not"}
NOT_ON_RECORD = "not on record here"
FIELDS = ("item", "shows", "mark", "command", "values", "differs", "why")
START, END = "<!-- coverage: written by benchmarks/papers/coverage.py -->", "<!-- end of coverage -->"

Items = list[dict[str, Any]]


@functools.cache
def coverage() -> dict[str, Items]:
    """Paper → its items. Raises ValueError for an item without a mark, or without what its mark needs."""
    content: dict[str, Items] = yaml.safe_load(COVERAGE_FILE.read_text(encoding="utf-8"))
    for paper, items in content.items():
        for item in items:
            check_item(paper, item)
    return content


def check_item(paper: str, item: Mapping[str, Any]) -> None:
    """Raises ValueError where an item has no mark, or not what its mark needs."""
    name = f"{paper}, {item.get('item')!r}"
    if item.get("mark") not in MARKS:
        raise ValueError(f"{name}: expected a mark of {', '.join(MARKS)}, got {item.get('mark')!r}")
    unknown = [field for field in item if field not in FIELDS]
    if unknown:
        raise ValueError(f"{name}: {unknown[0]!r} is no field of {', '.join(FIELDS)}")
    needed = {"filled": ("command", "differs"), "partly": ("command", "differs", "why"), "not": ("why",)}
    lacks = [field for field in ("item", "shows", *needed[item["mark"]]) if not item.get(field)]
    if lacks:
        raise ValueError(f"{name} is marked {item['mark']!r} and lacks {', '.join(lacks)}")
    unfilled = [table for table in item.get("values", ()) if table not in printed_tables()]
    if unfilled:
        raise ValueError(f"{name}: printed.yaml has no table {unfilled[0]!r}")


def command_of(item: Mapping[str, Any]) -> str:
    """The whole command, as a reader types it; empty where there is none."""
    command = str(item.get("command", ""))
    if not command or command.startswith(("python ", "curate ")):
        return command
    return f"curate {command}" if command.startswith("evaluate ") else f"python -m benchmarks.papers {command}"


def coverage_lines() -> Iterator[str]:
    """The coverage as Markdown: a table per paper."""
    counts = {mark: sum(item["mark"] == mark for items in coverage().values() for item in items) for mark in MARKS}
    total = sum(counts.values())
    yield f"{total} tables and figures: " + ", ".join(f"{MARKS[mark]} {count}" for mark, count in counts.items()) + "."
    for paper, items in coverage().items():
        yield from ("", f"### {paper}", "", "| item | shows | mark | command | what differs | why not |")
        yield "|---|---|---|---|---|---|"
        for item in items:
            command = command_of(item)
            cells = (
                item["item"], item["shows"], MARKS[item["mark"]], f"`{command}`" if command else "–",
                item.get("differs", "–"), item.get("why", "–"),
            )  # fmt: skip
            yield "| " + " | ".join(cells) + " |"


def printed_lines() -> Iterator[str]:
    """The printed numbers as Markdown, each table as its paper has it (per cent where it prints per cent)."""
    yield from ("", "## Printed numbers", "")
    yield (
        "What the papers print, as far as it is on record here, from `benchmarks/papers/printed.yaml`. "
        f'A cell "{NOT_ON_RECORD}" is printed there and not known here.'
    )
    for name, printed in printed_tables().items():
        yield from ("", f"### {name}: {printed['title']}", "", f"{printed['source']}.")
        rows = printed.get("rows", ())
        if rows:
            columns = list(dict.fromkeys(column for row in rows for column in row))
            columns.sort(key=lambda column: column not in LABELS)
            percent = set(printed.get("percent", ()))
            headings = [f"{name.replace('_', ' ')}{', %' if name in percent else ''}" for name in columns]
            yield from ("", "| " + " | ".join(headings) + " |", "|" + "---|" * len(columns))
            for row in rows:
                yield "| " + " | ".join(_cell(row, column) for column in columns) + " |"
        notes = [f"Not on record here: {text}." for text in printed.get("not_on_record", ())]
        notes += printed.get("misprints", ())
        yield from ("", *(f"- {note}" for note in notes)) if notes else ()


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column not in row:
        return "–"
    value = row[column]
    return NOT_ON_RECORD if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def page_lines() -> list[str]:
    """What stands between the marks of the page."""
    return [*coverage_lines(), *printed_lines()]


def write_page(page: Path) -> None:
    """Write coverage and printed numbers between the marks of a page. Raises ValueError for one without them."""
    text = page.read_text(encoding="utf-8")
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"{page}: expected {START} and {END}, once each")
    head, tail = text.partition(START)[0], text.partition(END)[2]
    save_text(page, "\n".join([f"{head}{START}", "", *page_lines(), "", f"{END}{tail}"]))
