"""Tables of texts row by row: a row or cell that cannot be read has a reason, its neighbours are what they are.

The reader of csv, tsv and json lines, packed or not. `text_tables.read_rows` is the same for tables of which a damaged
row is a reason to stop.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import polars as pl

from curation_assets.stores.caption_text import is_encodable
from curation_assets.stores.parquet import parquet_rows, parquet_schema, read_parquet, scan_parquet
from curation_assets.stores.text_format import (
    Dialect,
    Record,
    TextFormat,
    dialect_of,
    is_packed,
    lines_of,
    once_per_version,
    records,
    table_suffix,
    width_of,
)

ROW_REASON = "row_reason"  # column of `read_sound_rows`: why a row, or a cell of it, cannot be read
WRONG_ENCODING = 0.5  # of the rows: where so many cannot be decoded, the file has another encoding
MAX_KEYS = 10_000  # of the objects of a .jsonl file: more are values that stand where keys should
PART_ROWS = 1 << 16  # of a part that polars reads
CHUNK = 1 << 12  # rows that are packed at once: more are what the garbage collector goes through again and again

_HINT = "it was read as {}; name another with --encoding (latin-1, cp1252, utf-16 …)"


def read_sound_rows(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    rows: int | None = None,
    text: TextFormat | None = None,
    suffix: str | None = None,
    optional: Collection[str] = (),
) -> pl.DataFrame:
    """Rows of a table, empty cells as null; with a column ROW_REASON where a row or cell cannot be read.

    A line that is no record is a row without cells, as is one with too many cells, or with too few (a row of one cell
    has the others empty); a cell in another encoding is null, as is one of .jsonl that holds no text where others of
    its column do. Cells of `optional` columns are null without a reason. Of .csv and .tsv every column is text; of
    .jsonl a column is what all its cells are: texts, lists of texts, numbers; a text among lists is a list of one.
    `columns`: these only, null where no line of a .jsonl file has one; `rows`: so many from the top. `suffix`: read it
    as if it ended so. Raises ValueError for another kind of file, a header that cannot be read, a column that is not
    there, and where most rows have another encoding or none is an object.
    """
    text, suffix = text or TextFormat(), suffix or table_suffix(path)
    if suffix == ".parquet":
        return _read_parquet(path, columns, rows)
    try:
        if suffix == ".jsonl":
            return _read_json_lines(path, columns, rows, text, optional)
        if suffix in (".csv", ".tsv"):
            return _read_text(path, columns, rows, text, suffix, optional)
    except UnicodeError as error:
        raise _refusal(path, suffix, str(error), text.encoding) from error
    raise _no_table(path)


def _no_table(path: Path) -> ValueError:
    return ValueError(f"{path}: expected .tsv, .csv, .parquet, .jsonl or a tab-separated .txt")


def sound_parts(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    text: TextFormat | None = None,
    suffix: str | None = None,
    optional: Collection[str] = (),
) -> Iterator[pl.DataFrame]:
    """`read_sound_rows` part by part, a part without rows first, always with ROW_REASON. A part of .jsonl whose cells
    of a column are all null may have it as texts.

    Raises as it; that most rows have another encoding, or none is an object, after the last part.
    """
    text, suffix, undecoded, rows = text or TextFormat(), suffix or table_suffix(path), 0, 0
    if suffix == ".parquet":
        yield from _parquet_parts(path, columns)
        return
    if suffix not in (".jsonl", ".csv", ".tsv"):
        raise _no_table(path)
    refusal = _refusal(path, suffix, f"most of its rows are not {text.encoding}", text.encoding)
    try:
        parts = (
            _json_parts(path, columns, text.encoding, optional)
            if suffix == ".jsonl"
            else _csv_parts(path, columns, text, suffix, optional)
        )
        for frame, reasons in parts:
            undecoded, rows = undecoded + _undecoded(reasons), rows + len(reasons)
            yield _reasoned(frame, reasons)
    except UnicodeError as error:
        raise _refusal(path, suffix, str(error), text.encoding) from error
    _check_encoding(undecoded, rows, refusal)


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
    return read_sound_rows(path, rows=0, text=text).schema


def _refusal(path: Path, suffix: str, problem: str, encoding: str | None = None) -> ValueError:
    """`encoding`: that the file was read in, where it is to blame."""
    cure = "repair it or leave it out" if encoding is None else _HINT.format(encoding)
    return ValueError(f"{path} cannot be read as {suffix[1:]}: {problem}; {cure}")


def _read_parquet(path: Path, columns: Sequence[str] | None, rows: int | None) -> pl.DataFrame:
    chosen = None if columns is None else list(columns)
    try:
        return read_parquet(path, columns=chosen, n_rows=rows)
    except pl.exceptions.PolarsError as error:
        raise _refusal(path, ".parquet", str(error).splitlines()[0]) from error


def _parquet_parts(path: Path, columns: Sequence[str] | None) -> Iterator[pl.DataFrame]:
    chosen = None if columns is None else list(columns)
    try:
        for start in range(-PART_ROWS, parquet_rows(path), PART_ROWS):
            scan = scan_parquet(path).slice(max(start, 0), PART_ROWS if start >= 0 else 0)
            part = (scan if chosen is None else scan.select(chosen)).collect()
            yield part.with_columns(pl.lit(None, pl.String).alias(ROW_REASON))
    except pl.exceptions.PolarsError as error:
        raise _refusal(path, ".parquet", str(error).splitlines()[0]) from error


# -- csv and tsv ------------------------------------------------------------------------------------------------------


def _heading(path: Path, text: TextFormat, suffix: str) -> tuple[Dialect, list[str]]:
    """How a file is written, and its columns. Raises ValueError for a header that cannot be read."""
    dialect = dialect_of(path, text, suffix)
    width = width_of(path, dialect, text.has_header)
    if not text.has_header and width:
        return dialect, [f"column_{number}" for number in range(width)]
    first = next(records(path, dialect), None)
    if first is None:
        raise _refusal(path, suffix, "it is empty")
    if first.cells is None:
        raise _refusal(path, suffix, "the quotation marks of its header are not closed")
    if not all(map(is_encodable, first.cells)):
        raise _refusal(path, suffix, f"its header is not {text.encoding}", text.encoding)
    return dialect, _distinct(first.cells)


def _read_text(
    path: Path,
    columns: Sequence[str] | None,
    rows: int | None,
    text: TextFormat,
    suffix: str,
    optional: Collection[str],
) -> pl.DataFrame:
    """A csv or tsv: at once where it has no quotation mark and no odd row (8 times as fast), else record by record."""
    scan, chosen = _plain(path, columns, text, suffix, rows)
    if scan is not None:
        try:
            return scan.collect(optimizations=_ALL_COLUMNS)
        except pl.exceptions.PolarsError:
            pass  # record by record it is found which row is to blame
    refusal = _refusal(path, suffix, f"most of its rows are not {text.encoding}", text.encoding)
    return _read_damaged(path, chosen, text, refusal, rows=rows, suffix=suffix, optional=optional)


#: Where polars reads some columns alone it does not look at the ends of lines.
_ALL_COLUMNS = pl.QueryOptFlags(projection_pushdown=False)


def _plain(
    path: Path, columns: Sequence[str] | None, text: TextFormat, suffix: str, rows: int | None = None
) -> tuple[pl.LazyFrame | None, list[str]]:
    """What polars reads of a plain file; None of another one. And the columns."""
    dialect, names = _heading(path, text, suffix)
    chosen = names if columns is None else list(columns)
    absent = [name for name in chosen if name not in names]
    if absent:
        raise ValueError(f"{path} has no column {absent[0]!r}; it has {names} ({dialect})")
    if not _is_plain(path, dialect, len(names)):
        return None, chosen
    scan = pl.scan_csv(
        path,
        separator=dialect.separator,
        quote_char=None,
        has_header=text.has_header,
        schema=dict.fromkeys(names, pl.String),
        n_rows=rows,
        glob=False,
    )
    return scan.select(chosen), chosen


def _csv_parts(
    path: Path, columns: Sequence[str] | None, text: TextFormat, suffix: str, optional: Collection[str]
) -> Iterator[tuple[pl.DataFrame, list[str | None]]]:
    """As `_text_parts`, from polars as far as it reads the file."""
    scan, chosen = _plain(path, columns, text, suffix)
    read = 0
    if scan is not None:
        yield pl.DataFrame(schema=dict.fromkeys(chosen, pl.String)), []
        try:
            for frame in scan.collect_batches(chunk_size=PART_ROWS, optimizations=_ALL_COLUMNS):
                yield frame, [None] * frame.height
                read += frame.height
            return
        except pl.exceptions.PolarsError:
            pass
    for frame, reasons in _text_parts(path, chosen, text, suffix=suffix, optional=optional):
        known = min(read, frame.height)
        read -= known
        yield frame[known:], reasons[known:]


def _is_plain(path: Path, dialect: Dialect, width: int) -> bool:
    """Whether every byte of a separator or line break separates, and there are as many as full rows have."""
    if not dialect.encoding.startswith("utf-8") or dialect.line_end != "\n" or is_packed(path):
        return False
    separator = dialect.separator.encode()
    lines = separators = 0
    block = b"\n"
    with path.open("rb") as file:
        while following := file.read(1 << 20):
            block = following + file.read(1) if following.endswith(b"\r") else following
            if (dialect.quoting != "none" and b'"' in block) or block.count(b"\r") != block.count(b"\r\n"):
                return False
            lines += block.count(b"\n")
            separators += block.count(separator)
    if block.endswith(separator):  # polars reads a last cell beyond the header as none
        return False
    return separators == (lines + (not block.endswith(b"\n"))) * (width - 1)


def _read_damaged(
    path: Path,
    columns: Sequence[str] | None,
    text: TextFormat,
    refusal: ValueError,
    *,
    rows: int | None = None,
    suffix: str | None = None,
    optional: Collection[str] = (),
) -> pl.DataFrame:
    """Rows with ROW_REASON, record by record. `refusal`: raised where most have another encoding."""
    parts = list(_text_parts(path, columns, text, rows=rows, suffix=suffix, optional=optional))
    reasons = [reason for _, of_part in parts for reason in of_part]
    return _with_reasons(pl.concat(frame for frame, _ in parts), reasons, refusal)


def _text_parts(
    path: Path,
    columns: Sequence[str] | None,
    text: TextFormat,
    *,
    rows: int | None = None,
    suffix: str | None = None,
    optional: Collection[str] = (),
) -> Iterator[tuple[pl.DataFrame, list[str | None]]]:
    """Rows, empty cells as null, and why one cannot be read; a part without rows first."""
    dialect, names = _heading(path, text, suffix or table_suffix(path))
    chosen = names if columns is None else list(columns)
    positions = [names.index(name) for name in chosen]
    found = islice(records(path, dialect, len(names)), int(text.has_header), None)
    found = found if rows is None else islice(found, rows)
    empty = [pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in chosen]
    yield pl.DataFrame(schema=dict.fromkeys(chosen, pl.String)), []
    while chunk := list(islice(found, CHUNK)):
        checked = [_checked(record, len(names), positions) for record in chunk]
        reasons = [reason for reason, _ in checked]
        cells_of = [
            [cells[position] if position < len(cells) else "" for _, cells in checked] for position in positions
        ]
        series = [
            _decoded_texts(name, column, reasons, name in optional)
            for name, column in zip(chosen, cells_of, strict=True)
        ]
        yield pl.DataFrame(series).with_columns(empty), reasons


def _joined(name: str, parts: Sequence[pl.Series]) -> pl.Series:
    return pl.concat(parts) if parts else pl.Series(name, [], dtype=pl.String)


def _checked(record: Record, width: int, positions: Sequence[int]) -> tuple[str | None, Sequence[str]]:
    """(reason, cells) of a record; no cells where it is no row."""
    line, cells = record[:2]
    if cells is None:
        return f"csv_malformed:line_{line}", []
    if len(cells) == width:
        return None, cells
    if len(cells) > width:
        return f"csv_too_many_cells:line_{line}", []
    if len(cells) > 1 or (cells[0] and max(positions, default=0) == 0):
        return f"csv_too_few_cells:line_{line}", []
    return None, cells


def _decoded_texts(name: str, cells: list[str], reasons: list[str | None], is_optional: bool) -> pl.Series:
    """A column's cells; null, with a reason of its row, for those in another encoding."""
    try:
        return pl.Series(name, cells, dtype=pl.String)
    except UnicodeEncodeError:
        kept = [cell if is_encodable(cell) else None for cell in cells]
        for number, cell in enumerate(kept):
            if cell is None and not is_optional:
                reasons[number] = f"cell_not_decodable:{name}"
        return pl.Series(name, kept, dtype=pl.String)


def _with_reasons(frame: pl.DataFrame, reasons: Sequence[str | None], refusal: ValueError) -> pl.DataFrame:
    _check_encoding(_undecoded(reasons), len(reasons), refusal)
    return _reasoned(frame, reasons)


def _reasoned(frame: pl.DataFrame, reasons: Sequence[str | None]) -> pl.DataFrame:
    return pl.DataFrame([*frame.get_columns(), pl.Series(ROW_REASON, reasons, dtype=pl.String)])  # of no column, too


def _undecoded(reasons: Sequence[str | None]) -> int:
    return sum(reason is not None and reason.startswith("cell_not_decodable") for reason in reasons)


def _check_encoding(undecoded: int, rows: int, refusal: ValueError) -> None:
    if undecoded and undecoded >= WRONG_ENCODING * rows:
        raise refusal


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
NUMBERS: AbstractSet[Kind] = {"integer", "number"}
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


@once_per_version
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
    if "texts" in kinds:
        return pl.List(pl.String)
    if {"text", "undecoded"} & set(kinds):
        return pl.String()
    if kinds and set(kinds) <= NUMBERS:
        return pl.Float64()
    return pl.Boolean() if set(kinds) == {"boolean"} else pl.Object() if kinds else pl.Null()


def _read_json_lines(
    path: Path, columns: Sequence[str] | None, rows: int | None, text: TextFormat, optional: Collection[str]
) -> pl.DataFrame:
    chosen = list(_kinds_of(path, text.encoding)) if columns is None else list(columns)
    parts: dict[str, list[pl.Series | list[Any]]] = {name: [] for name in chosen}
    reasons: list[str | None] = []
    for cells_of, of_chunk in _json_chunks(path, chosen, text.encoding, rows):
        reasons += of_chunk
        for name, column in zip(chosen, cells_of, strict=True):
            parts[name].append(_packed(name, column))
    if reasons and all(reasons) and rows is None:
        raise _no_objects(path, len(reasons))
    series = [_unified(name, parts[name], reasons, name in optional, columns is not None) for name in chosen]
    refusal = _refusal(path, ".jsonl", f"most of its rows are not {text.encoding}", text.encoding)
    return _with_reasons(pl.DataFrame(series), reasons, refusal)


def _no_objects(path: Path, lines: int) -> ValueError:
    return _refusal(path, ".jsonl", f'none of its {lines} lines is an object such as {{"caption": "a dog"}}')


def _json_chunks(
    path: Path, chosen: Sequence[str], encoding: str, rows: int | None = None
) -> Iterator[tuple[list[list[Any]], list[str | None]]]:
    """(cells of each column, why a line is no object), some lines after the other."""
    found, none = islice(_objects(path, encoding), rows), [None] * len(chosen)
    while chunk := [
        (line, None if row is None else [row.get(name) for name in chosen]) for line, row in islice(found, CHUNK)
    ]:
        reasons = [None if cells is not None else f"json_malformed:line_{line}" for line, cells in chunk]
        yield [list(column) for column in zip(*(cells or none for _, cells in chunk), strict=True)], reasons


def _json_parts(
    path: Path, columns: Sequence[str] | None, encoding: str, optional: Collection[str]
) -> Iterator[tuple[pl.DataFrame, list[str | None]]]:
    """As `_text_parts`: a column is what all its cells are in the whole file."""
    of_file, lines, are_all, is_wanted = _kinds_of(path, encoding), 0, True, columns is not None
    kinds = {name: of_file.get(name, set[Kind]()) for name in (of_file if columns is None else columns)}
    yield pl.DataFrame(schema=dict.fromkeys(kinds, pl.String)), []
    for cells_of, reasons in _json_chunks(path, list(kinds), encoding):
        lines, are_all = lines + len(reasons), are_all and all(reasons)
        series = [
            _unified(
                name, [cells if len(known) > 1 else _packed(name, cells)], reasons, name in optional, is_wanted, known
            )
            for (name, known), cells in zip(kinds.items(), cells_of, strict=True)
        ]
        yield pl.DataFrame(series), reasons
    if lines and are_all:
        raise _no_objects(path, lines)


def _packed(name: str, cells: list[Any]) -> pl.Series | list[Any]:
    """Cells of one kind as a column, others as they are."""
    kinds = set(map(type, cells)) - {type(None)}
    if float in kinds:  # NaN is pandas' null: integers beside it are integers
        cells = [None if cell != cell else cell for cell in cells]
        kinds = set(map(type, cells)) - {type(None)}
    try:
        if kinds <= {str}:
            return pl.Series(name, cells, dtype=pl.String)
        if kinds <= {int}:
            return pl.Series(name, cells, dtype=pl.Int64)
        if kinds <= {int, float}:
            return pl.Series(name, cells, dtype=pl.Float64, strict=False)
        if kinds <= {bool}:
            return pl.Series(name, cells, dtype=pl.Boolean)
        if kinds <= {list} and all(isinstance(text, str) for cell in cells for text in cell or ()):
            return pl.Series(name, cells, dtype=pl.List(pl.String))
    except (UnicodeEncodeError, TypeError, OverflowError):  # a lone surrogate, a number beyond 64 bits
        pass
    return cells


def _unified(
    name: str,
    parts: Sequence[pl.Series | list[Any]],
    reasons: list[str | None],
    is_optional: bool,
    is_wanted: bool,
    whole: AbstractSet[Kind] | None = None,
) -> pl.Series:
    """A column of all its parts, in the one type that they have together, or that cells of the kinds `whole` have."""
    packed = [part for part in parts if isinstance(part, pl.Series)]
    dtypes = {part.dtype for part in packed if part.null_count() < len(part)}
    numbers = {pl.Int64(), pl.Float64()}
    if len(packed) == len(parts) and (len(dtypes) <= 1 or dtypes <= numbers):
        dtype = next(iter(dtypes), pl.String()) if len(dtypes) <= 1 else pl.Float64()
        return _joined(name, [part.cast(dtype) if part.dtype in numbers else _empty_as(part, dtype) for part in packed])
    cells = [cell for part in parts for cell in (part.to_list() if isinstance(part, pl.Series) else part)]
    kinds = list(map(_kind, cells))
    there: AbstractSet[Kind | None] = set(kinds) - {None} if whole is None else whole
    if there <= NUMBERS:
        return pl.Series(name, cells, dtype=pl.Float64, strict=False).fill_nan(None)
    if not is_wanted and not there & {"text", "texts"}:  # objects, lists of numbers: as polars takes them
        try:
            return pl.Series(name, [None if kind is None else c for c, kind in zip(cells, kinds, strict=True)])
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            return pl.Series(
                name, [None if kind is None else json.dumps(c) for c, kind in zip(cells, kinds, strict=True)]
            )
    is_list = "texts" in there
    texts: list[Any] = []
    for number, (cell, kind) in enumerate(zip(cells, kinds, strict=True)):
        if kind in NUMBERS and is_optional:  # a column of numbers, some of which are texts
            cell, kind = json.dumps(cell), "text"
        is_text = kind in ("text", "texts")
        texts.append(None if not is_text else [cell] if is_list and kind == "text" else cell)
        if not is_text and kind is not None and not is_optional and reasons[number] is None:
            reasons[number] = f"cell_{'not_decodable' if kind == 'undecoded' else 'no_text'}:{name}"
    return pl.Series(name, texts, dtype=pl.List(pl.String) if is_list else pl.String)


def _empty_as(part: pl.Series, dtype: pl.DataType) -> pl.Series:
    """A part whose cells are all null, in another type."""
    return part if part.dtype == dtype else pl.Series(part.name, [None] * len(part), dtype=dtype)
