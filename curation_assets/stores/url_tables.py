"""Pools that come as tables of captions, with or without URLs: parquet, csv or tsv, one file or a folder of them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import shard_key
from curation_assets.numeric.identity import sample_id_of
from curation_assets.stores.atomic import remove_path, remove_stale
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.damaged_tables import ROW_REASON, read_sound_rows
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import FileState, cached_sha256, file_sha256
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.samples import mark_duplicates, without_denied
from curation_assets.stores.seal import read_sealed_json, sealed_json
from curation_assets.stores.temporary import temporary_path
from curation_assets.stores.text_tables import TextFormat

TABLE_SUFFIXES = (".parquet", ".csv", ".tsv")
SPLIT_FILE = "split.json"

#: What pools call our columns, in order of preference; letter case does not matter.
COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "url": ("url", "image_url", "img_url", "image_link", "imageurl"),
    "caption": ("caption", "text", "alt_text", "alt", "txt"),
    "uid": ("uid", "sample_id"),
}

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


def table_files(source: Path) -> list[Path]:
    """The table files of a source, sorted by name. Raises ValueError for mixed formats or none."""
    if not source.exists():
        raise FileNotFoundError(f"source {source} is missing; put it back, or add the pool again with its new path")
    if source.is_file():
        files = [source] if source.suffix in TABLE_SUFFIXES else []
    else:
        files = sorted(p for p in source.iterdir() if p.suffix in TABLE_SUFFIXES and not p.name.startswith("."))
    if not files:
        raise ValueError(f"{source}: expected {', '.join(TABLE_SUFFIXES)} files, got none")
    suffixes = {path.suffix for path in files}
    if len(suffixes) > 1:
        raise ValueError(f"{source}: expected files of one format, got {sorted(suffixes)}; give one file, or move some")
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
    first = read_sound_rows(table_files(source)[0], rows=1, text=text).drop(ROW_REASON, strict=False)
    by_lower = {name.lower(): name for name in reversed(first.columns)}
    columns: dict[str, str | None] = {}
    for ours, names in COLUMN_NAMES.items():
        if ours in given:
            columns[ours] = given[ours]
        else:
            columns[ours] = next((by_lower[name] for name in names if name in by_lower), None)
        if columns[ours] is not None and columns[ours] not in first.columns:
            raise ValueError(
                f"{source} has no column {columns[ours]!r} for {ours}; it has {first.columns}: name one with "
                f"{COLUMN_OPTIONS[ours]}"
            )
    if columns["caption"] is None and "caption" not in given and not text.has_header and len(first.columns) == 1:
        columns["caption"] = first.columns[0]
    if columns["caption"] is None:
        raise ValueError(
            f"{source}: no caption column; expected one of {list(COLUMN_NAMES['caption'])}, got {first.columns}; "
            "name it with --caption-column NAME, or give --no-header where the first line is a caption already"
        )
    for ours, theirs in columns.items():
        if theirs is not None and first.schema[theirs] not in (pl.String, pl.Null):
            raise ValueError(
                f"{source}: column {theirs!r} ({ours}) must hold strings, got {first.schema[theirs]}; "
                f"name another with {COLUMN_OPTIONS[ours]} NAME"
            )
    return ColumnMapping(caption=str(columns["caption"]), url=columns["url"], uid=columns["uid"])


def size_columns(source: Path, text: TextFormat) -> dict[str, str]:
    """Columns of the images' sizes as DataComp names them, where the source has both as numbers."""
    first = read_sound_rows(table_files(source)[0], rows=1, text=text).drop(ROW_REASON, strict=False)
    has_both = all(name in first.columns and first.schema[name].is_numeric() for name in SIZES)
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
            "columns": [columns.caption, columns.url, columns.uid],
            "shard_size": shard_size,
            "pool": pool,
            **({"denylist": denylist.version} if denylist else {}),
            **({} if text == TextFormat() else {"text": [text.has_header, text.encoding]}),
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
    needed = sorted({name for name in (*names.values(), *numbers.values()) if name is not None})
    parts = []
    for path in files:
        part = read_sound_rows(path, needed, text=text)
        texts = {
            ours: pl.lit(None, pl.String) if theirs is None else _text(part, theirs) for ours, theirs in names.items()
        }
        parts.append(
            part.select(
                *(column.alias(ours) for ours, column in texts.items()),
                *(number(path, part, theirs).alias(ours) for ours, theirs in numbers.items()),
                source_reason=_row_reason(part, [theirs for theirs in names.values() if theirs is not None]),
            )
            if part.height
            else pl.DataFrame(
                schema=dict.fromkeys(names, pl.String)
                | dict.fromkeys(numbers, pl.Float64)
                | {"source_reason": pl.String}
            )
        )
    rows = pl.concat(parts)
    more = ["source_reason"] if rows["source_reason"].null_count() < rows.height else []
    ids = [sample_id_of(url, caption, uid) for caption, url, uid in rows.select("caption", "url", "uid").iter_rows()]
    identified = rows.with_row_index("source_row").with_columns(
        pl.Series("sample_id", ids, dtype=pl.String), pl.col("source_row").cast(pl.Int64)
    )
    kept = ("sample_id", "source_row", "url", "caption", "is_duplicate", *more, *numbers)
    return mark_duplicates(identified).select(kept)


def _text(part: pl.DataFrame, column: str) -> pl.Expr:
    """A column as texts; null where it holds something else: lists, bytes in another encoding."""
    dtype = part.schema[column]
    if dtype.is_nested() or dtype == pl.Object:
        return pl.lit(None, pl.String)
    if dtype == pl.Binary:
        return pl.lit(pl.Series([_decoded(cell) for cell in part[column]], dtype=pl.String))
    return pl.col(column).cast(pl.String)


def _decoded(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


def _row_reason(part: pl.DataFrame, columns: Sequence[str]) -> pl.Expr:
    """Why a row cannot be used as it is written; null where it can."""
    reasons = [
        pl.when(pl.col(name).is_not_null() & _text(part, name).is_null()).then(pl.lit(f"cell_no_text:{name}"))
        for name in columns
    ]
    own = [pl.col(ROW_REASON)] if ROW_REASON in part.columns else []
    return pl.coalesce([*own, *reasons, pl.lit(None, pl.String)])


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
