"""csv and tsv files of which some rows are none: what the strict reader refuses whole, row by row."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from curation_assets.stores.text_tables import TextFormat, read_rows

ROW_REASON = "row_reason"  # column of `read_sound_rows`: why a row, or a cell of it, cannot be read
WRONG_ENCODING = 0.5  # of the rows: where so many cannot be decoded, the file has another encoding

#: (number of its first line, cells; None where the line is no row)
Record = tuple[int, list[str] | None]


def read_sound_rows(
    path: Path, columns: Sequence[str] | None = None, *, rows: int | None = None, text: TextFormat | None = None
) -> pl.DataFrame:
    """As `read_rows`, empty cells as null; of a csv or tsv that it refuses, every row, some with a ROW_REASON.

    A line that is no csv is a row without cells, as is one with too many; a cell in another encoding is null. Other
    rows are what they are in a sound file. Raises ValueError for what else `read_rows` refuses, for a header that
    cannot be read, and where most rows have another encoding.
    """
    text = text or TextFormat()
    try:
        return read_rows(path, columns, rows=rows, empty_is_null=True, text=text)
    except ValueError as error:
        if path.suffix not in (".csv", ".tsv"):
            raise
        frame = _read_damaged(path, columns, text, error)
        return frame if rows is None else frame.head(rows)


def _read_damaged(path: Path, columns: Sequence[str] | None, text: TextFormat, refusal: ValueError) -> pl.DataFrame:
    try:
        content = path.read_bytes().decode(text.encoding, "surrogateescape").removeprefix("\ufeff")
    except UnicodeError:
        raise refusal from None
    records = list(_csv_records(content) if path.suffix == ".csv" else _tsv_records(content))
    first = records[0][1] if records else None
    if first is None or not all(map(_is_decoded, first)) or (columns and text.has_header and set(columns) - set(first)):
        raise refusal
    names = first if text.has_header else [f"column_{number}" for number in range(len(first))]
    chosen = names if columns is None else list(columns)
    positions = [names.index(name) for name in chosen]
    cells: dict[str, list[str | None]] = {name: [] for name in chosen}
    reasons: list[str | None] = []
    for line, record in records[1 if text.has_header else 0 :]:
        reason, record = _checked(line, record, len(names))
        for name, position in zip(chosen, positions, strict=True):
            cell = record[position] if position < len(record) else ""
            if not _is_decoded(cell):
                cell, reason = "", f"cell_not_decodable:{name}"
            cells[name].append(cell or None)
        reasons.append(reason)
    undecoded = sum(reason is not None and reason.startswith("cell_not_decodable") for reason in reasons)
    if undecoded and undecoded >= WRONG_ENCODING * len(reasons):
        raise refusal
    return pl.DataFrame(cells, schema=dict.fromkeys(chosen, pl.String)).with_columns(
        pl.Series(ROW_REASON, reasons, dtype=pl.String)
    )


def _checked(line: int, record: list[str] | None, width: int) -> tuple[str | None, list[str]]:
    """(reason, cells) of a record; no cells where it is no row."""
    if record is None:
        return f"csv_malformed:line_{line}", []
    if len(record) > width:
        return f"csv_too_many_cells:line_{line}", []
    return None, record


def _lines(content: str) -> list[str]:
    lines = content.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _tsv_records(content: str) -> Iterator[Record]:
    for number, line in enumerate(_lines(content), start=1):
        yield number, line.removesuffix("\r").split("\t")


def _csv_records(content: str) -> Iterator[Record]:
    """Records by `csv`, in its strict dialect; after a line that is none, the next line begins anew."""
    lines = _lines(content)
    position = 0

    def feed() -> Iterator[str]:
        nonlocal position
        while position < len(lines):
            position += 1
            yield f"{lines[position - 1]}\n"

    csv.field_size_limit(max(csv.field_size_limit(), len(content) + 1))
    while position < len(lines):
        start = position
        try:
            for record in csv.reader(feed(), strict=True):
                yield start + 1, record
                start = position
        except csv.Error:
            yield start + 1, None
            position = start + 1


def _is_decoded(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True
