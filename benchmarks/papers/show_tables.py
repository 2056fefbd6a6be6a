"""python -m benchmarks.papers tables: the papers' tables for one or more pools, beside the printed numbers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from benchmarks.papers.tables import (
    COUNT_COLUMNS,
    MAKERS,
    PRINTED,
    Cell,
    PaperTable,
    Row,
    Sources,
    paper_table,
)
from curation_assets.cli.common import HomeOption, JsonOption, notice, settings_from, show, show_json, show_table
from curation_assets.core.validation import check_known
from curation_assets.evaluation.comparison import written, written_share
from curation_assets.flow.context import PoolContext
from curation_assets.stores.atomic import check_new, writing_new


def tables(
    pools: Annotated[list[str], typer.Argument(metavar="POOL...", help="Pools, such as draws of one source.")],
    table: Annotated[
        list[str] | None, typer.Option("--table", help=f"Only this one (repeat): {', '.join(MAKERS)}.")
    ] = None,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, for a paper or an issue.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write a file: Markdown, or JSON with --json.")] = None,
    home: HomeOption = None,
) -> None:
    """Write the papers' tables for these pools, beside the printed numbers.

    Each states what is not comparable and why. A table that the pools cannot fill names what to set; exit 1 if it was
    named.
    """
    if as_json and as_markdown:
        raise ValueError("--json or --markdown, one of them")
    if len(set(pools)) < len(pools):
        raise ValueError(f"each pool once, got {' '.join(pools)}")
    check_known("tables", "table", table or [], MAKERS)
    if out is not None:
        check_new(out)
    settings = settings_from(home)
    sources = Sources([PoolContext.open(settings, name) for name in pools])
    made = [paper_table(name, sources) for name in (dict.fromkeys(table) if table else MAKERS)]
    if out is not None:
        text = _json_text(made) if as_json else "\n".join(_markdown(one) for one in made)
        with writing_new(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
        notice(f"{sum(one.absent is None for one in made)} of {len(made)} tables in {out}")
    elif as_json:
        show_json([_content(one) for one in made])
    elif as_markdown:
        for line in "\n".join(_markdown(one) for one in made).split("\n"):
            show(line)
    else:
        for one in made:
            _show(one)
    if table:
        absent = [one for one in made if one.absent is not None]
        for one in absent:
            notice(Text.assemble(("error", "bold red"), f" {one.name}: {one.absent}"))
        if absent:
            raise typer.Exit(1)


def _show(table: PaperTable) -> None:
    if table.absent is not None:
        show(f"{table.name}: absent. {table.absent}")
        show()
        return
    show(f"{table.name}: {table.title} ({table.source})")
    headings = [name.replace("_", " ") for name in (*table.labels, "", *table.columns)]
    show_table(headings, _texts(table), left=len(table.labels) + 1)
    for remark in _remarks(table):
        show(f"  {remark}")
    show()


def _remarks(table: PaperTable) -> list[str]:
    intervals = [name for name in table.columns if any(cell.low is not None for cell in _column(table, name))]
    notes = {
        "± is half of the 95 % interval.": any(not _leans(table, name) for name in intervals),
        "In brackets: the 95 % interval.": any(_leans(table, name) for name in intervals),
    }
    return [*(note for note, applies in notes.items() if applies), *table.remarks]


def _column(table: PaperTable, name: str) -> list[Cell]:
    return [row.cells[name] for row in table.rows if name in row.cells]


def _leans(table: PaperTable, name: str) -> bool:
    """Whether an interval of the column reaches further to one side, as a correlation's does."""
    return any(
        abs(cell.high + cell.low - 2 * cell.value) > 1e-6
        for cell in _column(table, name)
        if cell.value is not None and cell.low is not None and cell.high is not None
    )


def _texts(table: PaperTable) -> list[list[str]]:
    leaning = {name: _leans(table, name) for name in table.columns}
    return [
        [
            *(_label(name, row.labels.get(name, "")) for name in table.labels),
            "printed" if row.origin == PRINTED else "",
            *(_number(name, row.cells.get(name), leaning[name]) for name in table.columns),
        ]
        for row in table.rows
    ]


def _label(name: str, value: str | float | None) -> str:
    if value is None:
        return "own" if name == "size" else ""
    if name == "size" and not isinstance(value, str):
        return written_share(value)
    return value if isinstance(value, str) else f"{value:,}"


def _number(column: str, cell: Cell | None, leans: bool) -> str:
    if cell is None or cell.value is None:
        return "–"
    if column in COUNT_COLUMNS:
        return f"{cell.value:,.0f}"
    if cell.low is None or cell.high is None:
        return written(cell.value)[0]
    if leans:
        value, low, high = written(cell.value, cell.low, cell.high)
        return f"{value} ({low} to {high})"
    return " ±".join(written(cell.value, (cell.high - cell.low) / 2))


def _markdown(table: PaperTable) -> str:
    lines = [f"## {table.name}: {table.title}", ""]
    if table.absent is not None:
        return "\n".join([*lines, f"Absent: {table.absent}.", ""])
    headings = [*(name.replace("_", " ") for name in table.labels), "", *table.columns]
    lines += [f"Printed numbers: {table.source}.", "", _line(headings)]
    lines.append(_line([*["---"] * (len(table.labels) + 1), *["---:"] * len(table.columns)]))
    lines += [_line(texts) for texts in _texts(table)]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in _remarks(table)), ""])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _content(table: PaperTable) -> dict[str, Any]:
    return {
        "table": table.name,
        "title": table.title,
        "source_of_printed": table.source,
        "absent": table.absent,
        "rows": [_row_content(row) for row in table.rows],
        "remarks": list(table.remarks),
    }


def _row_content(row: Row) -> dict[str, Any]:
    """Labels, origin, and a number per column; with its interval under COLUMN_low and COLUMN_high."""
    content: dict[str, Any] = {**row.labels, "origin": row.origin}
    for name, cell in row.cells.items():
        content[name] = cell.value
        if cell.low is not None:
            content |= {f"{name}_low": cell.low, f"{name}_high": cell.high}
    return content


def _json_text(made: list[PaperTable]) -> str:
    import json

    return json.dumps([_content(table) for table in made], indent=1, ensure_ascii=False) + "\n"
