"""Columns of tables that people bring: which one is caption, URL or id; their cells as texts and numbers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from curation_assets.numeric.identity import SAMPLE_ID
from curation_assets.sources.pool_facts import ColumnNames
from curation_assets.sources.table_files import no_tables, partition_values, tables_of
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_texts
from curation_assets.stores.damaged_tables import ROW_REASON, read_sound_rows, schema_of, sound_parts
from curation_assets.stores.provenance import GIVEN
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.text_format import TextFormat

#: What pools call our columns, in order of preference; letter case does not matter.
COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "url": ("url", "image_url", "img_url", "image_link", "imageurl"),
    "caption": ("caption", "text", "alt_text", "alt", "txt"),
    "uid": ("uid", "sample_id"),
}
#: The same of what is carried along of where a row comes from.
GIVEN_NAMES: Mapping[str, tuple[str, ...]] = {
    "source": ("source", "source_name", "dataset"),
    "licence": ("licence", "license", "licence_id", "license_id"),
    "licence_url": ("licence_url", "license_url"),
    "creator": ("creator", "author", "photographer"),
    "source_url": ("source_url", "page_url", "landing_url"),
    "language": ("language", "lang"),
}
MAX_GIVEN_CHARACTERS = 2000  # of a cell of these; a longer one is unknown
LOOKED_AT_IDS = 1000  # rows that are looked at to see whether ids are sample_ids
#: Numbers of a table that a pool without images takes over: sizes as DataComp's metadata has them.
SIZES = ("original_width", "original_height")

#: Options of `curate pool add` that name a column.
COLUMN_OPTIONS: Mapping[str, str] = {
    "image": "--image-column",
    "url": "--url-column",
    "caption": "--caption-column",
    "uid": "--id-column",
    "source": "--source-column",
    "licence": "--licence-column",
    "licence_url": "--licence-url-column",
    "creator": "--creator-column",
    "source_url": "--source-url-column",
    "language": "--language-column",
}


def table_files(source: Path) -> list[Path]:
    """The table files of a source, sorted by name. Raises ValueError for mixed formats or none."""
    if not source.exists():
        raise FileNotFoundError(f"source {source} is missing; put it back, or add the pool again with its new path")
    files = tables_of(source)
    if not files:
        raise no_tables(source)
    return files


def columns_of(path: Path, text: TextFormat) -> pl.Schema:
    """Columns of a table with their types, and those of the folders KEY=VALUE that it lies in, as texts."""
    return pl.Schema({**dict.fromkeys(partition_values(path), pl.String()), **schema_of(path, text)})


def text_column(
    source: Path,
    ours: str,
    given: ColumnNames,
    schema: Mapping[str, pl.DataType],
    names: Sequence[str],
    *,
    besides: str | None = None,
) -> str | None:
    """The column that is our `ours`: as given, else by its name; None without one.

    Of several names the first whose column holds texts; ids that are none are left aside (`unused_ids`). Raises
    ValueError for a column that is not there or holds something else.
    """
    named = named_columns(schema, names, [besides])
    fitting = [name for name in named if holds_text(schema[name], lists=ours == "caption")]
    theirs = next(iter([*fitting, *(named if ours != "uid" else [])]), None)
    if ours in given:
        theirs = _given_column(source, ours, given[ours], schema)
    if theirs is not None and not holds_text(schema[theirs], lists=ours == "caption"):
        raise ValueError(
            f"{source}: column {theirs!r} ({ours}) must hold strings, got {schema[theirs]}; "
            f"name another with {COLUMN_OPTIONS[ours]} NAME"
        )
    return theirs


def named_columns(schema: Mapping[str, pl.DataType], names: Sequence[str], taken: Collection[str | None]) -> list[str]:
    """Columns, but those `taken`, whose names are among `names`, in the order of these."""
    by_lower = {name.lower(): name for name in reversed(list(schema)) if name not in taken}
    return [by_lower[name] for name in names if name in by_lower]


def _given_column(source: Path, ours: str, theirs: str | None, schema: Mapping[str, pl.DataType]) -> str | None:
    """The column that a user named for `ours`. Raises ValueError for one that is not there."""
    if theirs is not None and theirs not in schema:
        raise ValueError(
            f"{source} has no column {theirs!r} for {ours}; it has {list(schema)}: name one with {COLUMN_OPTIONS[ours]}"
        )
    return theirs


def holds_text(dtype: pl.DataType, *, lists: bool = False) -> bool:
    """Whether a column holds texts: strings, also as a dictionary or as bytes without the note that they are UTF-8;
    `lists`: or lists of them."""
    if isinstance(dtype, pl.List):
        return lists and holds_text(pl.Series([], dtype=dtype.inner).dtype)
    return dtype in (pl.String, pl.Null, pl.Categorical, pl.Enum, pl.Binary)


def unused_ids(schema: Mapping[str, pl.DataType], uid: str | None) -> list[str]:
    """Sentences on columns named as ids that are not used, for what they hold."""
    return [
        f"Column {name} ({dtype}) is named as an id and left aside: sample_ids are 32 hex digits, as text"
        for name, dtype in schema.items()
        if uid is None and name.lower() in COLUMN_NAMES["uid"] and not holds_text(dtype)
    ]


def number(path: Path, table: pl.DataFrame, column: str) -> pl.Expr:
    """A column of numbers as float64; empty cells and NaN are null. A float32 counts as the decimal that it prints:
    .7 is .7, as it is where float32 is compared with float32.

    Raises ValueError for a text that is no number.
    """
    if column not in table.columns:
        raise ValueError(f"{path} has no column {column!r}; it has {table.columns}")
    dtype = table.schema[column]
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Null, pl.Boolean)):
        raise ValueError(f"{path}: {column} must hold numbers, got {dtype}")
    texts = pl.col(column).cast(pl.String).str.strip_chars() if dtype in (pl.Float32, pl.String) else pl.col(column)
    if dtype == pl.String:
        texts = pl.when(texts != "").then(texts)
        cells = table.select(text=texts, value=texts.cast(pl.Float64, strict=False))
        wrong = cells.filter(pl.col("text").is_not_null() & pl.col("value").is_null())
        if wrong.height:
            raise ValueError(f"{path}: {column} must hold numbers, got {wrong['text'][0]!r}")
    return texts.cast(pl.Float64).fill_nan(None)


def text_parts(
    path: Path, columns: ColumnNames, numbers: Mapping[str, str], text: TextFormat
) -> Iterator[pl.DataFrame]:
    """The rows of a file, part by part: our texts (caption, url, uid), `numbers`, and
    source_reason, which is why a caption or url is null. A caption that is a list is its first
    text.

    A column that this file lacks is null, with a reason unless it is the uid's. Raises ValueError
    for a text in place of a number.
    """
    schema, in_file = columns_of(path, text), schema_of(path, text)
    wanted = {name for name in (*columns.values(), *numbers.values()) if name is not None}
    needed = {columns.get("caption"), columns.get("url"), None}
    optional = {columns.get("uid"), *(columns.get(name) for name in (OWN_ID, *GIVEN)), *numbers.values()} - needed
    there = sorted(wanted & set(in_file))
    if not there:
        raise ValueError(f"{path} has no column {sorted(wanted)}, as the files before it have; it has {list(schema)}")
    of_folders = [
        pl.lit(value, pl.String).alias(name)
        for name, value in partition_values(path).items()
        if name in wanted and name not in in_file
    ]
    for part in sound_parts(path, there, text=text, optional=[str(name) for name in optional]):
        part = part.with_columns(of_folders)
        yield _our_texts(path, part, schema, columns, numbers)


def _our_texts(
    path: Path,
    part: pl.DataFrame,
    schema: Mapping[str, pl.DataType],
    columns: ColumnNames,
    numbers: Mapping[str, str],
) -> pl.DataFrame:
    texts, reasons = [], [part[ROW_REASON]]
    for ours, theirs in columns.items():
        is_optional = ours in ("uid", OWN_ID, *GIVEN)
        if theirs is None or (theirs not in schema and is_optional):
            found = pl.Series([None] * part.height, dtype=pl.String)
        elif ours == OWN_ID:
            found = own_ids(part[theirs])
        elif ours in GIVEN:
            found = given_texts(part[theirs])
        else:
            found, reason = texts_of(part, theirs)
            reasons += [] if is_optional else [reason]
        texts.append(found.alias(ours))
    values = [
        part.select(number(path, part, theirs).alias(ours)).to_series()
        if theirs in schema
        else pl.Series(ours, [None] * part.height, dtype=pl.Float64)
        for ours, theirs in numbers.items()
    ]
    frame = pl.DataFrame([*texts, *values])
    return frame.with_columns(caption_texts(pl.col("caption")), source_reason=pl.coalesce(*reasons))


def given_columns_of(
    source: Path, given: ColumnNames, schema: Mapping[str, pl.DataType], taken: Collection[str | None]
) -> dict[str, str]:
    """Columns of where rows come from: our name → the source's, as given, else by its name. None of `taken`, which are
    columns of something else.

    Raises ValueError for a given column that is not there.
    """
    found = {}
    for ours, names in GIVEN_NAMES.items():
        if ours in given:
            theirs = _given_column(source, ours, given[ours], schema)
        else:
            named = named_columns(schema, names, taken)
            theirs = next((name for name in named if holds_text(schema[name])), None)
        if theirs is not None:
            found[ours] = theirs
    return found


def carried_columns(columns: ColumnNames) -> dict[str, str]:
    """The columns that state where rows come from: our name → the source's."""
    return {name: theirs for name in GIVEN if (theirs := columns.get(name)) is not None}


def given_texts(cells: pl.Series) -> pl.Series:
    """Cells as texts without blanks around them; null where a cell is blank, no text or number, or over long."""
    texts = _as_texts(cells, numbers=True).str.strip_chars()
    return texts.set((texts == "") | (texts.str.len_chars() > MAX_GIVEN_CHARACTERS), None)


def own_ids(cells: pl.Series) -> pl.Series:
    """Ids that are no sample_ids, as texts; null where a cell has none, or a sample_id."""
    texts = _as_texts(cells, numbers=True)
    return texts.set(texts.str.contains(rf"^({SAMPLE_ID.pattern})?$"), None)


def own_id_column(source: Path, uid: str | None, text: TextFormat) -> str | None:
    """The column of ids, or one named so, that holds ids other than sample_ids; None where it does not."""
    table = table_files(source)[0]
    schema = schema_of(table, text)
    named = [name for name in schema if name.lower() in COLUMN_NAMES["uid"] and schema[name].is_integer()]
    column = uid or next(iter(named), None)
    if column is None or column not in schema:
        return None
    ids = own_ids(read_sound_rows(table, [column], rows=LOOKED_AT_IDS, text=text)[column])
    return column if ids.null_count() < len(ids) else None


def texts_of(part: pl.DataFrame, column: str) -> tuple[pl.Series, pl.Series]:
    """(texts, reasons) of a column: a text is null, with a reason, where the cell holds something else or too much."""
    if column not in part.columns:
        reason = pl.Series([f"column_missing:{column}"] * part.height, dtype=pl.String)
        return pl.Series([None] * part.height, dtype=pl.String), reason
    cells = part[column]
    if isinstance(cells.dtype, pl.List):
        cells = cells.list.first()
    texts = _as_texts(cells)
    is_long = texts.str.len_bytes() > MAX_TEXT_BYTES
    found = pl.DataFrame({"texts": texts, "is_none": cells.is_not_null() & texts.is_null(), "is_long": is_long})
    no_text = pl.when("is_none").then(pl.lit(f"cell_no_text:{column}"))
    reasons = no_text.when("is_long").then(pl.lit(f"cell_too_long:{column}"))
    kept = found.select(texts=pl.when(~pl.col("is_long")).then("texts"), reasons=reasons)
    return kept["texts"], kept["reasons"]


def _as_texts(cells: pl.Series, *, numbers: bool = False) -> pl.Series:
    """Cells as texts; null where one is none. `numbers`: whole numbers are texts, too."""
    if cells.dtype == pl.Binary:
        return pl.Series([_decoded(cell) for cell in cells], dtype=pl.String)
    if holds_text(cells.dtype) or (numbers and cells.dtype.is_integer()):
        return cells.cast(pl.String)
    return pl.Series([None] * len(cells), dtype=pl.String)


def _decoded(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None
