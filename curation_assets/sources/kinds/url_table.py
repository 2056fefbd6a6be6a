"""Pools that come as tables of captions, with or without URLs: one file or a folder of them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import shard_key
from curation_assets.numeric.identity import SAMPLE_ID, sample_id_of
from curation_assets.sources.table_files import no_tables, tables_of
from curation_assets.stores.atomic import remove_path, remove_stale
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_texts
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.damaged_tables import ROW_REASON, read_sound_rows, schema_of
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import FileState, cached_sha256, file_sha256
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.samples import OWN_ID, mark_duplicates, without_denied
from curation_assets.stores.seal import read_sealed_json, sealed_json
from curation_assets.stores.temporary import temporary_path
from curation_assets.stores.text_format import TextFormat

SPLIT_FILE = "split.json"

#: What pools call our columns, in order of preference; letter case does not matter.
COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "url": ("url", "image_url", "img_url", "image_link", "imageurl"),
    "caption": ("caption", "text", "alt_text", "alt", "txt"),
    "uid": ("uid", "sample_id"),
}
LOOKED_AT_IDS = 1000  # rows that are looked at to see whether ids are sample_ids

#: Numbers of a table that a pool without images takes over: sizes as DataComp's metadata has them.
SIZES = ("original_width", "original_height")

#: Options of `curate pool add` that name a column.
COLUMN_OPTIONS: Mapping[str, str] = {
    "image": "--image-column",
    "url": "--url-column",
    "caption": "--caption-column",
    "uid": "--id-column",
}


@dataclass(frozen=True)
class ColumnMapping:
    """Which column of the source holds what. `url` None: captions only."""

    caption: str
    url: str | None = None
    uid: str | None = None
    own_id: str | None = None  # ids that are no sample_ids, carried along


def table_files(source: Path) -> list[Path]:
    """The table files of a source, sorted by name. Raises ValueError for mixed formats or none."""
    if not source.exists():
        raise FileNotFoundError(f"source {source} is missing; put it back, or add the pool again with its new path")
    files = tables_of(source)
    if not files:
        raise no_tables(source)
    return files


def detect_columns(
    source: Path, given: Mapping[str, str | None] | None = None, text: TextFormat | None = None
) -> ColumnMapping:
    """Find url, caption and uid columns by name; `given` decides where it speaks ({'url': None}: captions only).

    `text`: how csv and tsv files are read; default: UTF-8 with a header. Raises ValueError that lists the columns
    there are.
    """
    given, text = dict(given or {}), text or TextFormat()
    unknown = set(given) - set(COLUMN_NAMES)
    if unknown:
        raise ValueError(f"columns may name {sorted(COLUMN_NAMES)}, got {sorted(unknown)}")
    schema = schema_of(table_files(source)[0], text)
    columns = {ours: text_column(source, ours, given, schema, names) for ours, names in COLUMN_NAMES.items()}
    if columns["caption"] is None and "caption" not in given and not text.has_header and len(schema) == 1:
        columns["caption"] = next(iter(schema))
    if columns["caption"] is None:
        raise ValueError(
            f"{source}: no caption column; expected one of {list(COLUMN_NAMES['caption'])}, got {list(schema)}; "
            "name it with --caption-column NAME, or give --no-header where the first line is a caption already"
        )
    return ColumnMapping(caption=str(columns["caption"]), url=columns["url"], uid=columns["uid"])


def text_column(
    source: Path,
    ours: str,
    given: Mapping[str, str | None],
    schema: Mapping[str, pl.DataType],
    names: Sequence[str],
    *,
    besides: str | None = None,
) -> str | None:
    """The column that is our `ours`: as given, else by its name; None without one.

    Of several names the first whose column holds texts; ids that are none are left aside (`unused_ids`). Raises
    ValueError for a column that is not there or holds something else.
    """
    if ours in given:
        theirs = given[ours]
    else:
        by_lower = {name.lower(): name for name in reversed(list(schema)) if name != besides}
        there = [by_lower[name] for name in names if name in by_lower]
        fitting = [name for name in there if holds_text(schema[name], lists=ours == "caption")]
        theirs = next(iter([*fitting, *(there if ours != "uid" else [])]), None)
    if theirs is not None and theirs not in schema:
        raise ValueError(
            f"{source} has no column {theirs!r} for {ours}; it has {list(schema)}: name one with {COLUMN_OPTIONS[ours]}"
        )
    if theirs is not None and not holds_text(schema[theirs], lists=ours == "caption"):
        raise ValueError(
            f"{source}: column {theirs!r} ({ours}) must hold strings, got {schema[theirs]}; "
            f"name another with {COLUMN_OPTIONS[ours]} NAME"
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


def size_columns(source: Path, text: TextFormat) -> dict[str, str]:
    """Columns of the images' sizes as DataComp names them, where every file of the source has both as numbers."""
    schemas = [schema_of(path, text) for path in table_files(source)]
    has_both = all(name in schema and schema[name].is_numeric() for schema in schemas for name in SIZES)
    return {name: name for name in SIZES} if has_both else {}


@dataclass(frozen=True)
class Split:
    """A source cut into shards: the folder of the parts, and rows and content of each shard."""

    folder: Path
    rows: Mapping[str, int]
    content_sha256: Mapping[str, str]
    facts: Mapping[str, int] = field(default_factory=dict)  # what people want to know of the source: name → count

    def part(self, shard: str) -> pl.DataFrame:
        """Rows of one shard: sample_id, source_row, url, caption, is_duplicate, source_reason, and what else was read.

        Raises ValueError for no such shard.
        """
        if shard not in self.rows:
            raise ValueError(f"no shard {shard!r}; the source has {len(self.rows)}: {sorted(self.rows)[:5]} …")
        frame = read_parquet(self.folder / f"{shard}.parquet")
        if frame_sha256(frame) != self.content_sha256[shard]:
            raise ValueError(f"{self.folder / shard}.parquet is damaged; delete {self.folder}, it will be made again")
        if "source_reason" not in frame.columns:
            frame = frame.with_columns(source_reason=pl.lit(None, pl.String))
        return frame


def split_source(
    pool: str,
    source: Path,
    work: Path,
    columns: ColumnMapping,
    shard_size: int,
    denylist: Denylist | None = None,
    text: TextFormat | None = None,
    numbers: Mapping[str, str] | None = None,
) -> Split:
    """Cut a source into shards of `shard_size` rows under `work`/source, once per version of source and denylist.

    Duplicates are seen over the whole pool here: of several usable rows with one sample_id, the first in source
    order is not a duplicate. A changed source makes a new split. Holds the source's text columns in memory (about
    300 bytes a row). `numbers`: further columns, our name → the source's; a part has them as float64.
    """
    files, text = table_files(source), text or TextFormat()
    home = work / "source"
    hashes = cached_sha256(files, home / "sha256.json")
    version = config_sha256(
        {
            "files": [hashes[str(path)] for path in files],
            "columns": [columns.caption, columns.url, columns.uid, *([columns.own_id] if columns.own_id else [])],
            "shard_size": shard_size,
            "pool": pool,
            **({"denylist": denylist.version} if denylist else {}),
            **({} if text == TextFormat() else {"text": text.config()}),
            **({"numbers": dict(numbers)} if numbers else {}),
        }
    )[:16]
    folder = home / f"split-{version}"
    if read_sealed_json(folder / SPLIT_FILE) is None:
        rows = _identified(files, columns, text, numbers or {})
        _write_split(folder, pool, rows, shard_size, denylist)
        _remove_other_splits(folder)
    return _read_split(folder)


def _remove_other_splits(folder: Path) -> None:
    for old in folder.parent.glob("split-*"):
        if old != folder:
            remove_path(old)


def _read_split(folder: Path) -> Split:
    content = read_sealed_json(folder / SPLIT_FILE)
    if content is None:
        raise ValueError(f"{folder / SPLIT_FILE} is absent or damaged; delete {folder}, it will be made again")
    return Split(folder, content["rows"], content["content_sha256"], content.get("facts", {}))


#: File name → its state (the fields of FileState), null where there is no such file.
Stamps = Mapping[str, list[int] | None]


def stamps_of(folder: Path, names: Sequence[str]) -> Stamps:
    """States of files of a folder, by name."""
    return {name: None if (state := _state(folder / name)) is None else [*astuple(state)] for name in names}


def _state(path: Path) -> FileState | None:
    try:
        return FileState.of(path)
    except OSError:
        return None


def _are_as_stamped(folder: Path, stamps: Stamps, stamped_ns: int) -> bool:
    states = ((_state(folder / name), stamp) for name, stamp in stamps.items())
    return all(
        stamp is None if state is None else stamp is not None and state.is_noted(stamp, stamped_ns)
        for state, stamp in states
    )


def stamped_split(
    home: Path,
    base: str,
    folder: Path,
    read: Callable[[], tuple[pl.DataFrame, Stamps, dict[str, int]]],
    pool: str,
    shard_size: int,
    denylist: Denylist | None,
) -> Split:
    """The split of version `base` under `home` while the files of `folder` that its rows name are what they were.

    Else made anew. `read` gives the rows, the stamps of those files, and facts.
    """
    for known in sorted(home.glob(f"split-{base}-*/{SPLIT_FILE}")):
        stamps: Stamps | None = (read_sealed_json(known) or {}).get("stamps")
        if stamps is not None and _are_as_stamped(folder, stamps, known.stat().st_mtime_ns):
            return _read_split(known.parent)
    rows, stamps, facts = read()
    made = home / f"split-{base}-{config_sha256(dict(stamps))[:8]}"
    _write_split(made, pool, rows, shard_size, denylist, {"facts": facts, "stamps": stamps})
    _remove_other_splits(made)
    return _read_split(made)


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


def _identified(
    files: Sequence[Path], columns: ColumnMapping, text: TextFormat, numbers: Mapping[str, str]
) -> pl.DataFrame:
    """Grain: one row per source row, in source order."""
    names = {"caption": columns.caption, "url": columns.url, "uid": columns.uid}
    names |= {OWN_ID: columns.own_id} if columns.own_id else {}
    rows = pl.concat([read_texts(path, names, numbers, text) for path in files])
    more = ["source_reason"] if rows["source_reason"].null_count() < rows.height else []
    ids = [sample_id_of(url, caption, uid) for caption, url, uid in rows.select("caption", "url", "uid").iter_rows()]
    identified = rows.with_row_index("source_row").with_columns(
        pl.Series("sample_id", ids, dtype=pl.String), pl.col("source_row").cast(pl.Int64)
    )
    more += [*numbers, *([OWN_ID] if columns.own_id else [])]
    kept = ("sample_id", "source_row", "url", "caption", "is_duplicate", *more)
    return mark_duplicates(identified).select(kept)


def read_texts(
    path: Path, columns: Mapping[str, str | None], numbers: Mapping[str, str], text: TextFormat
) -> pl.DataFrame:
    """Of every row of a file our texts (caption, of a list the first; url; uid), `numbers`, and source_reason: why a
    cell of caption or url is none.

    A column that this file lacks is null, with a reason unless it is the uid's. Raises ValueError for a number that is
    none.
    """
    schema = schema_of(path, text)
    wanted = {name for name in (*columns.values(), *numbers.values()) if name is not None}
    needed = {columns.get("caption"), columns.get("url"), None}
    optional = {columns.get("uid"), columns.get(OWN_ID), *numbers.values()} - needed
    there = sorted(wanted & set(schema))
    if not there:
        raise ValueError(f"{path} has no column {sorted(wanted)}, as the files before it have; it has {list(schema)}")
    part = read_sound_rows(path, there, text=text, optional=[str(name) for name in optional])
    texts, reasons = [], [part[ROW_REASON]] if ROW_REASON in part.columns else []
    for ours, theirs in columns.items():
        if theirs is None or (theirs not in schema and ours in ("uid", OWN_ID)):
            texts.append(pl.Series(ours, [None] * part.height, dtype=pl.String))
            continue
        if ours == OWN_ID:
            texts.append(own_ids(part[theirs]).alias(ours))
            continue
        found, reason = texts_of(part, theirs)
        texts.append(found.alias(ours))
        if ours != "uid":
            reasons.append(reason)
    values = [
        part.select(number(path, part, theirs).alias(ours)).to_series()
        if theirs in schema
        else pl.Series(ours, [None] * part.height, dtype=pl.Float64)
        for ours, theirs in numbers.items()
    ]
    frame = pl.DataFrame([*texts, *values])
    cleaned = caption_texts(pl.col("caption")).alias("caption")
    return frame.with_columns(cleaned, source_reason=pl.coalesce(*reasons, pl.lit(None, pl.String)))


def own_ids(cells: pl.Series) -> pl.Series:
    """Ids that are no sample_ids, as texts; null where a cell has none, or a sample_id."""
    if cells.dtype == pl.Binary:
        cells = pl.Series([_decoded(cell) for cell in cells], dtype=pl.String)
    if not (cells.dtype.is_integer() or holds_text(cells.dtype)):
        return pl.Series([None] * len(cells), dtype=pl.String)
    texts = cells.cast(pl.String)
    return texts.set(texts.str.contains(rf"^({SAMPLE_ID.pattern})?$"), None)


def own_id_column(source: Path, uid: str | None, text: TextFormat) -> str | None:
    """The column of ids, or one named so, that holds ids other than sample_ids; None where it does not."""
    table = table_files(source)[0]
    schema = schema_of(table, text)
    named = [name for name in schema if name.lower() in COLUMN_NAMES["uid"] and schema[name].is_integer()]
    column = uid or next(iter(named), None)
    if column is None:
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
    if not holds_text(cells.dtype):
        texts = pl.Series([None] * part.height, dtype=pl.String)
    elif cells.dtype == pl.Binary:
        texts = pl.Series([_decoded(cell) for cell in cells], dtype=pl.String)
    else:
        texts = cells.cast(pl.String)
    is_long = texts.str.len_bytes() > MAX_TEXT_BYTES
    found = pl.DataFrame({"texts": texts, "is_none": cells.is_not_null() & texts.is_null(), "is_long": is_long})
    no_text = pl.when("is_none").then(pl.lit(f"cell_no_text:{column}"))
    reasons = no_text.when("is_long").then(pl.lit(f"cell_too_long:{column}"))
    kept = found.select(texts=pl.when(~pl.col("is_long")).then("texts"), reasons=reasons)
    return kept["texts"], kept["reasons"]


def _decoded(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


def _slices(rows: pl.DataFrame, pool: str, shard_size: int) -> Iterator[tuple[str, pl.DataFrame]]:
    for number, start in enumerate(range(0, rows.height, shard_size)):
        yield shard_key(pool, number), rows.slice(start, shard_size)


def _write_split(
    folder: Path,
    pool: str,
    rows: pl.DataFrame,
    shard_size: int,
    denylist: Denylist | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(folder)
    draft = temporary_path(folder)
    draft.mkdir()
    try:
        counts, hashes, files = {}, {}, {}
        for key, source in _slices(rows, pool, shard_size):
            part = without_denied(source, denylist) if denylist else source
            part.write_parquet(draft / f"{key}.parquet", compression="zstd")
            counts[key], hashes[key] = part.height, frame_sha256(part)
            files[f"{key}.parquet"] = file_sha256(draft / f"{key}.parquet")
        content = {"rows": counts, "content_sha256": hashes, "files": files, **(more or {})}
        (draft / SPLIT_FILE).write_text(sealed_json(content), encoding="utf-8")
        if read_sealed_json(folder / SPLIT_FILE) is None:
            remove_path(folder)  # a damaged one
        try:
            os.replace(draft, folder)
        except OSError:
            if not (folder / SPLIT_FILE).is_file():
                raise
            remove_path(draft)  # another process made the same split first
    except BaseException:
        remove_path(draft)
        raise
