"""Tables of texts row by row: a row or cell that cannot be read has a reason, its neighbours are what they are.

The reader of csv, tsv and json lines, packed or not. `text_tables.read_rows` is the same for tables of which a damaged
row is a reason to stop.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import polars as pl

from curation_assets.stores.caption_text import is_encodable
from curation_assets.stores.file_hash import once_per_version
from curation_assets.stores.parquet import PART_ROWS, parquet_parts, parquet_schema, scan_parquet
from curation_assets.stores.text_format import (
    Dialect,
    Record,
    TextFormat,
    dialect_of,
    is_packed,
    lines_of,
    records,
    table_suffix,
)

ROW_REASON = "row_reason"  # column of `read_sound_rows`: why a row, or a cell of it, cannot be read
WRONG_ENCODING = 0.5  # of the rows: where so many cannot be decoded, the file has another encoding
MAX_KEYS = 10_000  # of the objects of a .jsonl file: more are values that stand where keys should
CHUNK = 1 << 12  # rows that are packed at once: more are what the garbage collector goes through again and again

_HINT = "it was read as {}; name another with --encoding (latin-1, cp1252, utf-16 …)"


def read_sound_rows(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    rows: int | None = None,
    text: TextFormat | None = None,
) -> pl.DataFrame:
    """Rows of a table, empty cells as null, with a column ROW_REASON: why a row or cell cannot be read, null where it
    can.

    A line that is no record is a row without cells, as is one with too many or too few cells, but for an empty
    line; a cell in another encoding is null, as is one of .jsonl that holds no text where others of its column
    do. Of .csv and .tsv every column is text; of .jsonl a column is what all cells of the file are: texts, lists
    of texts, numbers, else JSON; a text among lists is a list of one.
    `columns`: these only, null where no line of a .jsonl file has one; `rows`: so many from the top. Raises ValueError
    for another kind of file, a header that cannot be read, a column that is not there, and of a file read to its end
    where most rows have another encoding or none is an object.
    """
    if table_suffix(path) == ".parquet":
        return _parquet_part(path, columns, scan_parquet(path).slice(0, rows))
    parts, count = [], 0
    for part in sound_parts(path, columns, text=text):
        parts.append(part)
        count += part.height
        if rows is not None and count >= rows:
            break
    return pl.concat(parts, rechunk=True).head(count if rows is None else rows)


def sound_parts(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    text: TextFormat | None = None,
    suffix: str | None = None,
    optional: Collection[str] = (),
) -> Iterator[pl.DataFrame]:
    """`read_sound_rows` part by part, a part without rows first. Cells of `optional` columns are null without a reason.
    `suffix`: read it as if it ended so.

    Raises as it; that most rows have another encoding, or none is an object, after the last part.
    """
    text, suffix, undecoded, rows = text or TextFormat(), suffix or table_suffix(path), 0, 0
    if suffix == ".parquet":
        yield _parquet_part(path, columns, scan_parquet(path).head(0))
        yield from (_parquet_part(path, columns, part) for part in parquet_parts(path))
        return
    if suffix not in (".jsonl", ".csv", ".tsv"):
        raise ValueError(f"{path}: expected .tsv, .csv, .parquet, .jsonl or a tab-separated .txt")
    try:
        parts = (
            _json_parts(path, columns, text.encoding, optional)
            if suffix == ".jsonl"
            else _csv_parts(path, columns, text, suffix, optional)
        )
        for frame, reasons in parts:
            rows += len(reasons)
            undecoded += sum((reason or "").startswith("cell_not_decodable") for reason in reasons)
            reasoned = pl.Series(ROW_REASON, reasons, dtype=pl.String)
            yield pl.DataFrame([*frame.get_columns(), reasoned])  # also of a frame without columns
    except UnicodeError as error:
        raise _refusal(path, suffix, str(error), text.encoding) from error
    if undecoded and undecoded >= WRONG_ENCODING * rows:
        raise _refusal(path, suffix, f"most of its rows are not {text.encoding}", text.encoding)


def schema_of(path: Path, text: TextFormat | None = None) -> pl.Schema:
    """Columns of a table with their types, of a .jsonl file over all its lines. Raises as `read_sound_rows`."""
    text, suffix = text or TextFormat(), table_suffix(path)
    if suffix == ".parquet":
        try:
            return pl.Schema(parquet_schema(path))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _refusal(path, suffix, str(error).splitlines()[0]) from error
    if suffix == ".jsonl":
        return pl.Schema({name: _dtype(kinds) for name, kinds in _kinds_of(path, text.encoding).items()})
    return next(sound_parts(path, text=text)).drop(ROW_REASON).schema


def _refusal(path: Path, suffix: str, problem: str, encoding: str | None = None) -> ValueError:
    """`encoding`: that the file was read in, where it is to blame."""
    cure = "repair it or leave it out" if encoding is None else _HINT.format(encoding)
    return ValueError(f"{path} cannot be read as {suffix[1:]}: {problem}; {cure}")


def _parquet_part(path: Path, columns: Sequence[str] | None, part: pl.LazyFrame) -> pl.DataFrame:
    try:
        rows = (part if columns is None else part.select(columns)).collect()
    except pl.exceptions.PolarsError as error:
        raise _refusal(path, ".parquet", str(error).splitlines()[0]) from error
    return rows.with_columns(pl.lit(None, pl.String).alias(ROW_REASON))


# -- csv and tsv ------------------------------------------------------------------------------------------------------


def _heading(path: Path, text: TextFormat, suffix: str) -> tuple[Dialect, list[str]]:
    """How a file is written, and its columns: as many as its first record has cells. Raises ValueError for a header
    that cannot be read.
    """
    dialect = dialect_of(path, text, suffix)
    first = next(records(path, dialect), None)
    if first is None:
        raise _refusal(path, suffix, "it is empty")
    if first.cells is None:
        raise _refusal(path, suffix, "the quotation marks of its first line are not closed")
    if not text.has_header:
        return dialect, [f"column_{number}" for number in range(len(first.cells))]
    if not all(map(is_encodable, first.cells)):
        raise _refusal(path, suffix, f"its header is not {text.encoding}", text.encoding)
    return dialect, _distinct(first.cells)


#: Where polars reads some columns alone it does not look at the ends of lines.
_ALL_COLUMNS = pl.QueryOptFlags(projection_pushdown=False)


def _csv_parts(
    path: Path, columns: Sequence[str] | None, text: TextFormat, suffix: str, optional: Collection[str]
) -> Iterator[tuple[pl.DataFrame, list[str | None]]]:
    """Rows and why one cannot be read: from polars as far as it reads a plain file (8 times as fast), else record by
    record.
    """
    dialect, names = _heading(path, text, suffix)
    chosen = names if columns is None else list(columns)
    absent = [name for name in chosen if name not in names]
    if absent:
        raise ValueError(f"{path} has no column {absent[0]!r}; it has {names} ({dialect})")
    yield pl.DataFrame(schema=dict.fromkeys(chosen, pl.String)), []
    read = 0
    if _is_plain(path, dialect, len(names)):
        scan = pl.scan_csv(
            path,
            separator=dialect.separator,
            quote_char=None,
            has_header=text.has_header,
            schema=dict.fromkeys(names, pl.String),
            glob=False,
        ).select(chosen)
        try:
            for frame in scan.collect_batches(chunk_size=PART_ROWS, optimizations=_ALL_COLUMNS):
                yield frame, [None] * frame.height
                read += frame.height
            return
        except pl.exceptions.PolarsError:
            pass  # record by record it is found which row is to blame
    found = islice(records(path, dialect, len(names)), int(text.has_header) + read, None)
    while chunk := list(islice(found, CHUNK)):
        yield _checked(chunk, names, chosen, optional)


def _is_plain(path: Path, dialect: Dialect, width: int) -> bool:
    """Whether every byte of a separator or line break separates, and there are as many as full rows have."""
    mark = {"doubled": b'"', "by_cell": b'""'}.get(dialect.quoting)
    if not dialect.encoding.startswith("utf-8") or dialect.line_end != "\n" or is_packed(path):
        return False
    separator = dialect.separator.encode()
    lines = separators = 0
    block = b"\n"
    with path.open("rb") as file:
        while following := file.read(1 << 20):
            block = following + file.read(1) if following.endswith((b"\r", b'"')) else following
            if (mark is not None and mark in block) or block.count(b"\r") != block.count(b"\r\n"):
                return False
            lines += block.count(b"\n")
            separators += block.count(separator)
    if block.endswith(separator):  # polars reads a last cell beyond the header as none
        return False
    return separators == (lines + (not block.endswith(b"\n"))) * (width - 1)


def _checked(
    chunk: Sequence[Record], names: Sequence[str], chosen: Sequence[str], optional: Collection[str]
) -> tuple[pl.DataFrame, list[str | None]]:
    """Records as rows of the `chosen` columns, empty cells as null, and why one is none."""
    rows, reasons, empty = [], [], [""] * len(names)
    for line, cells in chunk:
        reason = None
        if cells is None:
            reason = f"csv_malformed:line_{line}"
        elif len(cells) != len(names) and cells != [""]:
            too = "many" if len(cells) > len(names) else "few"
            reason = f"csv_too_{too}_cells:line_{line}"
        reasons.append(reason)
        rows.append(cells if cells is not None and len(cells) == len(names) else empty)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    series = [_decoded_texts(name, columns[name], reasons, name in optional) for name in chosen]
    return pl.DataFrame(series).with_columns(pl.all().replace("", None)), reasons


def _decoded_texts(name: str, cells: Sequence[str], reasons: list[str | None], is_optional: bool) -> pl.Series:
    """A column's cells; null, with a reason of its row, for those in another encoding."""
    try:
        return pl.Series(name, cells, dtype=pl.String)
    except UnicodeEncodeError:
        kept = [cell if is_encodable(cell) else None for cell in cells]
        for number, cell in enumerate(kept):
            if cell is None and not is_optional:
                reasons[number] = f"cell_not_decodable:{name}"
        return pl.Series(name, kept, dtype=pl.String)


def _distinct(names: Sequence[str]) -> list[str]:
    """Each name once; a repeated one as polars calls it."""
    seen: dict[str, int] = defaultdict(int)
    result = []
    for name in names:
        result.append(f"{name}_duplicated_{seen[name] - 1}" if seen[name] else name)
        seen[name] += 1
    return result


# -- json lines -------------------------------------------------------------------------------------------------------

Kind = Literal["text", "texts", "integer", "number", "boolean", "undecoded", "other"]
_decode = json.JSONDecoder().raw_decode  # half the time of json.loads on a short line


def _objects(path: Path, encoding: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line, object) of every line that is not empty; None for one that is no object."""
    for number, line in enumerate(lines_of(path, encoding), start=1):
        if line is None:
            yield number, None
            continue
        line = line.strip(" \t\r\n")
        if not line:
            continue
        try:
            value, end = _decode(line)
        except (ValueError, RecursionError):  # ValueError: also a number of 5,000 digits
            value, end = None, 0
        yield number, value if end == len(line) and isinstance(value, dict) else None


def _kind(cell: Any) -> Kind | None:
    """None for null, and for NaN, which is pandas' null."""
    if isinstance(cell, str):
        return "text" if is_encodable(cell) else "undecoded"
    if cell is None or cell != cell:
        return None
    if isinstance(cell, bool):
        return "boolean"
    if isinstance(cell, int | float):
        return "integer" if isinstance(cell, int) and -(2**63) <= cell < 2**63 else "number"
    return "texts" if isinstance(cell, list) and all(_kind(text) == "text" for text in cell) else "other"


@once_per_version(1024)
def _kinds_of(path: Path, encoding: str) -> Mapping[str, set[Kind]]:
    """Key of a .jsonl file → kinds of its values, over all lines."""
    kinds: dict[str, set[Kind]] = {}
    for _, row in _objects(path, encoding):
        for key, cell in (row or {}).items():
            kind = _kind(cell)
            known = kinds.setdefault(key, set())
            if kind is not None:
                known.add(kind)
        if len(kinds) > MAX_KEYS:
            raise ValueError(f"{path}: its objects have more than {MAX_KEYS:,} different keys; expected named columns")
    return {key: found for key, found in kinds.items() if is_encodable(key)}


def _dtype(kinds: Collection[Kind]) -> pl.DataType:
    """The type of a column with cells of these kinds; Object where they have none in common."""
    if "texts" in kinds:
        return pl.List(pl.String)
    if {"text", "undecoded"} & set(kinds):
        return pl.String()
    if kinds and set(kinds) <= {"integer", "number"}:
        return pl.Float64() if "number" in kinds else pl.Int64()
    if set(kinds) == {"boolean"}:
        return pl.Boolean()
    return pl.Object() if kinds else pl.Null()


def _json_parts(
    path: Path, columns: Sequence[str] | None, encoding: str, optional: Collection[str]
) -> Iterator[tuple[pl.DataFrame, list[str | None]]]:
    """As `_csv_parts`: a column is what all its cells are in the whole file."""
    of_file, lines, are_all = _kinds_of(path, encoding), 0, True
    dtypes = {name: _dtype(of_file.get(name, ())) for name in (of_file if columns is None else columns)}
    if columns is None:  # what nobody names is carried along, as JSON where it has no type
        optional = [name for name, dtype in dtypes.items() if dtype == pl.Object]
    found = _objects(path, encoding)
    yield pl.DataFrame([_column(name, [], dtype, [], True) for name, dtype in dtypes.items()]), []
    while chunk := list(islice(found, CHUNK)):
        reasons = [f"json_malformed:line_{line}" if row is None else None for line, row in chunk]
        lines, are_all = lines + len(chunk), are_all and all(reasons)
        series = [
            _column(name, [(row or {}).get(name) for _, row in chunk], dtype, reasons, name in optional)
            for name, dtype in dtypes.items()
        ]
        yield pl.DataFrame(series), reasons
    if lines and are_all:
        raise _refusal(path, ".jsonl", f'none of its {lines} lines is an object such as {{"caption": "a dog"}}')


def _column(
    name: str, cells: Sequence[Any], dtype: pl.DataType, reasons: list[str | None], is_optional: bool
) -> pl.Series:
    """Cells of .jsonl in the type that they have in the whole file. What is no text where others are is null, with a
    reason of its row, or of an optional column JSON.
    """
    if dtype.is_numeric() or dtype == pl.Boolean:  # NaN is pandas' null
        return pl.Series(name, [None if cell != cell else cell for cell in cells], dtype=dtype, strict=False)
    is_list = dtype == pl.List(pl.String)
    texts: list[Any] = []
    for number, cell in enumerate(cells):
        kind = _kind(cell)
        if kind in ("text", "texts"):
            texts.append([cell] if is_list and kind == "text" else cell)
            continue
        texts.append(json.dumps(cell) if kind is not None and is_optional and not is_list else None)
        if kind is not None and not is_optional and reasons[number] is None:
            reasons[number] = f"cell_{'not_decodable' if kind == 'undecoded' else 'no_text'}:{name}"
    return pl.Series(name, texts, dtype=pl.List(pl.String) if is_list else pl.String)
