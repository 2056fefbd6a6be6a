"""Pools of images that lie in Parquet files or in a folder: which columns hold what, and every row with its image.

Three layouts. Parquet files with a column of image bytes, such as Hugging Face's image type, struct{bytes, path}. A
table (csv, tsv, jsonl, parquet) with a column of file names, beside the images. A folder of KEY.jpg with KEY.txt.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from curation_assets.numeric.identity import sample_id_of
from curation_assets.sources.kinds import url_table as url_tables
from curation_assets.sources.kinds.url_table import COLUMN_NAMES, Split, Stamps, read_texts, text_column
from curation_assets.sources.kinds.webdataset import TEXT_EXTENSIONS, keys_of
from curation_assets.sources.table_files import tables_of
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_text
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.damaged_tables import read_sound_rows, schema_of
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import FileState, cached_sha256, file_sha256
from curation_assets.stores.image_files import (
    PATH_REFUSED,
    has_image_files,
    image_names,
    locate,
    names_below,
    relative_name,
)
from curation_assets.stores.image_formats import format_of
from curation_assets.stores.samples import OWN_ID, mark_duplicates
from curation_assets.stores.text_format import SUFFIXES, TextFormat, table_suffix

_TEXT_SUFFIXES = tuple(f".{extension}" for extension in TEXT_EXTENSIONS)
#: Columns of image bytes, in order of preference.
BYTES_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "image_bytes", "bytes")
#: Columns of file names, in order of preference; Hugging Face's folders of images have file_name.
FILE_NAMES = (
    "file_name", "filename", "file", "image_file", "image_path", "img_path", "file_path", "filepath", "path",
    "image_name", "img_name", "image", "img", "photo", "picture",
)  # fmt: skip
CAPTION_NAMES = (*COLUMN_NAMES["caption"], "captions", "sentences", "sentence", "description", "prompt", "title")
LOOKED_AT = 1000  # file names that are looked up to see whether a column holds some
BATCH_ROWS = 16  # decoded from a Parquet file at a time: 16 images of at most some megabytes


@dataclass(frozen=True)
class ImageColumns:
    """Which column of the source holds what. `image` None: KEY.jpg with KEY.txt, without a table."""

    image: str | None
    caption: str | None = None
    url: str | None = None
    uid: str | None = None
    own_id: str | None = None  # ids that are no sample_ids, carried along


# -- what lies there --------------------------------------------------------------------------------------------------


def folder_of(source: Path) -> Path:
    """The folder that names of images count from."""
    return source if source.is_dir() else source.parent


def tables_in(source: Path) -> list[Path]:
    """The tables of a source, sorted by name: of a folder `metadata.*` where there is one. Raises ValueError for
    several formats."""
    files = tables_of(source)
    return [path for path in files if path.name.partition(".")[0] == "metadata"] or files


def detect_images(
    source: Path, given: Mapping[str, str | None] | None = None, text: TextFormat | None = None
) -> ImageColumns | None:
    """The columns of a source that brings its images along; None where it is a table of URLs or of captions alone.

    `given` decides where it speaks: {'image': None} is a table without images. Raises ValueError that names what was
    expected: a folder of images without captions, a table that names none of the images beside it, no caption column.
    """
    given, text = dict(given or {}), text or TextFormat()
    if "image" in given and given["image"] is None:
        return None
    tables = tables_in(source)
    if not tables:
        return _without_table(source, given)
    schema = schema_of(tables[0], text)
    image = given.get("image") or _bytes_column(tables[0], schema) or _only_images(source, tables[0], schema, given)
    if image is None and given.get("url") is None:
        image = _names_column(source, tables[0], schema, text)
    if image is None:
        return None
    if image not in schema:
        raise ValueError(
            f"{source} has no column {image!r} for image; it has {list(schema)}: name one with --image-column"
        )
    if not (_holds_bytes(schema[image]) or url_tables.holds_text(schema[image])):
        raise ValueError(
            f"{source}: column {image!r} (image) must hold image bytes, struct{{bytes, path}} or file names, "
            f"got {schema[image]}; name another with --image-column"
        )
    names = {"caption": CAPTION_NAMES, "url": COLUMN_NAMES["url"], "uid": COLUMN_NAMES["uid"]}
    others = {ours: text_column(source, ours, given, schema, usual, besides=image) for ours, usual in names.items()}
    if others["caption"] is None:
        raise ValueError(
            f"{source}: no caption column; expected one of {list(CAPTION_NAMES)}, got {list(schema)}; "
            "name it with --caption-column NAME"
        )
    return ImageColumns(image, **others)


def _without_table(source: Path, given: Mapping[str, str | None]) -> ImageColumns | None:
    """A folder without a table: images with their captions beside them, or nothing for us."""
    if not source.is_dir() or not has_image_files(source):
        return None
    if given:
        raise ValueError(f"{source} holds images and no table: columns do not apply, got {dict(given)}")
    names = image_names(source)
    if not any((source / text).is_file() for image, text in _pairs(source) if image):
        raise ValueError(
            f"{source} holds {len(names)} images such as {names[0]} and no captions; expected a table beside them "
            f"(metadata.csv or any csv, tsv, jsonl or parquet) with a column file_name and one of captions, or "
            f"{Path(names[0]).with_suffix('.txt')} for {names[0]}, and so on"
        )
    return ImageColumns(None)


def _holds_bytes(dtype: Any) -> bool:
    """Hugging Face's image type, or plain bytes."""
    if isinstance(dtype, pl.Struct):
        fields = {field.name: field.dtype for field in dtype.fields}
        return {"bytes", "path"} <= set(fields) and fields["bytes"] in (pl.Binary, pl.Null)
    return dtype == pl.Binary


def _bytes_column(path: Path, schema: pl.Schema) -> str | None:
    """The column of image bytes: named so by Hugging Face's metadata, else by its type and name; None without one."""
    candidates = [name for name, dtype in schema.items() if _holds_bytes(dtype)]
    stated = [name for name in _stated_images(path) if name in candidates]
    structs = [name for name in candidates if isinstance(schema[name], pl.Struct)]
    usual = [name for name in candidates if name.lower() in BYTES_NAMES]
    chosen = stated or structs or usual
    return min(chosen, key=lambda name: _rank(name, BYTES_NAMES)) if chosen else None


def _only_images(source: Path, table: Path, schema: pl.Schema, given: Mapping[str, str | None]) -> str | None:
    """The one column whose bytes begin as images do; None where no column holds images, or the rows have URLs.

    Raises ValueError for images of which no column can be taken: several to a row.
    """
    if given.get("url") or any(name.lower() in COLUMN_NAMES["url"] for name in schema):
        return None
    found = unused_images(table, schema, [name for name in given.values() if name])
    if len(found) == 1 and schema[found[0]] == pl.Binary:
        return found[0]
    if found:
        shown = ", ".join(f"{name} ({schema[name]})" for name in found)
        raise ValueError(
            f"{source} has images in {shown}; expected one image per row, as bytes or struct{{bytes, path}}: name its "
            "column with --image-column, write a row per image, or take the captions alone with --image-column none"
        )
    return None


def unused_images(path: Path, schema: pl.Schema, used: Collection[str]) -> list[str]:
    """Columns besides the `used` ones that hold images by type, metadata, name or the first bytes of their cells."""
    stated, lists = _stated_images(path), (pl.List, pl.Array)
    found = []
    for name, dtype in schema.items():
        inner = dtype.inner if isinstance(dtype, lists) else dtype
        is_listed = isinstance(dtype, lists) and (_holds_bytes(inner) or bool(_IMAGE_NAME.fullmatch(name.lower())))
        is_struct = isinstance(inner, pl.Struct) and any(one.dtype == pl.Binary for one in inner.fields)
        is_bytes = dtype == pl.Binary and (name in stated or _begins_as_image(path, name))
        if name not in used and (name in stated or is_listed or is_struct or is_bytes):
            found.append(name)
    return found


_IMAGE_NAME = re.compile(r"(image|img|jpg|jpeg|png|webp|picture|photo)(s|_?bytes|_?\d+)?")


def _begins_as_image(path: Path, column: str) -> bool:
    """Whether the first cells of a Parquet column are images; a caption may begin with BM, too."""
    if table_suffix(path) != ".parquet" or column.lower() in (*CAPTION_NAMES, *COLUMN_NAMES["url"]):
        return False
    try:
        cells = [cell for cell, _ in itertools.islice(image_cells(path, column), BATCH_ROWS) if cell]
        return bool(cells) and all(map(format_of, cells))
    except ValueError:  # a damaged file: whoever reads its rows says so
        return False


def _rank(name: str, names: Sequence[str]) -> int:
    return names.index(name.lower()) if name.lower() in names else len(names)


def _stated_images(path: Path) -> list[str]:
    """Columns that the schema's `huggingface` metadata declares as images or lists of them, where it has such."""
    if table_suffix(path) != ".parquet":
        return []
    metadata = pq.read_schema(path).metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return [name for name, feature in features.items() if '"_type": "Image"' in json.dumps(feature)]
    except (ValueError, KeyError, TypeError, AttributeError):  # not in the form that the library writes
        return []


def _names_column(source: Path, table: Path, schema: pl.Schema, text: TextFormat) -> str | None:
    """The column that names files of the folder; None where none does and no image lies there (or URLs are at hand)."""
    folder = folder_of(source)
    by_rank = sorted(
        (name for name in schema if name.lower() in FILE_NAMES and _holds_names(schema[name])),
        key=lambda name: _rank(name, FILE_NAMES),
    )
    shown: dict[str, str] = {}
    for column in by_rank:
        names = read_sound_rows(table, [column], rows=LOOKED_AT, text=text)[column]
        values = names.cast(pl.String).drop_nulls().to_list()
        if any(locate(folder, value)[0] is not None for value in values):
            return column
        if values:
            shown[column] = values[0]
    if not any(name.lower() in COLUMN_NAMES["url"] for name in schema):
        for column, value in shown.items():
            if value.lower().startswith(("http://", "https://")):
                raise ValueError(
                    f"{table}: column {column} holds URLs such as {value[:80]!r}; download them with --url-column "
                    f"{column}, or take the captions alone with --image-column none"
                )
            if locate(folder, value)[1] == PATH_REFUSED:
                raise ValueError(
                    f"{table}: column {column} names files outside of {folder}, such as {value[:80]!r}; expected names "
                    "relative to that folder, or paths inside it: move the table beside the images, or take the "
                    "captions alone with --image-column none"
                )
    is_folder_of_images = source.is_dir() and has_image_files(source)
    if not is_folder_of_images or any(name.lower() in COLUMN_NAMES["url"] for name in schema):
        return None
    example = image_names(folder)[0]
    if shown:
        raise ValueError(
            f"{table} names no image of {folder}: its column {next(iter(shown))} has {next(iter(shown.values()))!r}, "
            f"the folder {example!r}; expected names relative to the folder (another column: --image-column NAME)"
        )
    raise ValueError(
        f"{table} lies beside images such as {example} and has no column of their names; expected one of "
        f"{list(FILE_NAMES)}, got {list(schema)}; name it with --image-column NAME ('none': captions only)"
    )


def _holds_names(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum)


# -- rows and their images --------------------------------------------------------------------------------------------


def split_images(
    pool: str,
    source: Path,
    work: Path,
    columns: ImageColumns,
    shard_size: int,
    denylist: Denylist | None = None,
    text: TextFormat | None = None,
    numbers: Mapping[str, str] | None = None,
) -> Split:
    """Cut a source into shards of `shard_size` rows, as `url_tables.split_source` does, and find each row's image.

    Parts have further columns, IMAGE_SCHEMA. A row whose image cannot be read has none of them, and a source_reason.
    Every image is read once per version of the source, to be identified; none is held.
    """
    text, home = text or TextFormat(), work / "source"
    if not source.exists():
        raise FileNotFoundError(f"source {source} is missing; put it back, or add the pool again with its new path")
    tables = tables_in(source) if columns.image is not None else []
    if columns.image is not None and not tables:
        raise FileNotFoundError(f"source {source} has no table ({', '.join(SUFFIXES)}) any more; put it back")
    hashes = cached_sha256(tables, home / "sha256.json")
    base = config_sha256(
        {
            "files": [[path.relative_to(folder_of(source)).as_posix(), hashes[str(path)]] for path in tables],
            "names": _beside(source) if columns.image is None else [],
            "columns": {ours: theirs for ours, theirs in asdict(columns).items() if ours != OWN_ID or theirs},
            "shard_size": shard_size,
            "pool": pool,
            **({"numbers": dict(numbers)} if numbers else {}),
            **({"denylist": denylist.version} if denylist else {}),
            **({} if text == TextFormat() else {"text": text.config()}),
        }
    )[:16]
    folder = folder_of(source)

    def rows() -> tuple[pl.DataFrame, Stamps, dict[str, int]]:
        if columns.image is None:
            return _rows_beside(source)
        return _rows_of_tables(folder, tables, columns, text, numbers or {}, is_folder=source.is_dir())

    return url_tables.stamped_split(home, base, folder, rows, pool, shard_size, denylist)


#: Where a row's image lies.
IMAGE_SCHEMA = pl.Schema(
    {
        "image_file": pl.String,  # a Parquet file or an image, relative to the source's folder
        "image_row": pl.Int64,  # row of the Parquet file; null: the file is the image
        "image_sha256": pl.String,
    }
)
_SCHEMA = pl.Schema(
    {"caption": pl.String(), "url": pl.String(), "uid": pl.String(), **IMAGE_SCHEMA, "source_reason": pl.String()}
)


def _rows_of_tables(
    folder: Path,
    tables: Sequence[Path],
    columns: ImageColumns,
    text: TextFormat,
    numbers: Mapping[str, str],
    *,
    is_folder: bool,
) -> tuple[pl.DataFrame, Stamps, dict[str, int]]:
    """Rows of all tables with their images, what files they name, and counts for people."""
    assert columns.image is not None, "a folder without a table has no rows of tables"
    named: list[str] = []
    parts = []
    holds_bytes = has_lists = False
    theirs = {"caption": columns.caption, "url": columns.url, "uid": columns.uid}
    theirs |= {OWN_ID: columns.own_id} if columns.own_id else {}
    for path in tables:
        schema = schema_of(path, text)
        dtype = schema.get(columns.image)
        if dtype is None:
            raise ValueError(f"{path} has no column {columns.image!r} for image, as the files before it have")
        holds_bytes = _holds_bytes(dtype)
        texts = read_texts(path, theirs, numbers, text)
        if holds_bytes:
            images = _bytes_rows(folder, path, columns.image, named)
        else:
            names = read_sound_rows(path, [columns.image], text=text)[columns.image].cast(pl.String)
            images = _file_rows(folder, names, named)
        first = pl.coalesce("source_reason", "image_reason").alias("source_reason")
        parts.append(texts.hstack(images).with_columns(first).drop("image_reason"))
        has_lists = has_lists or isinstance(schema.get(columns.caption or ""), pl.List)
    more = [OWN_ID] if columns.own_id else []
    rows = _identified(pl.concat(parts).select(*_SCHEMA, *numbers, *more) if parts else pl.DataFrame(schema=_SCHEMA))
    facts = {"captions_in_lists": int(has_lists)}
    if is_folder and not holds_bytes:
        facts["unlisted_images"] = len(set(image_names(folder)) - {Path(name).as_posix() for name in named})
    return rows, url_tables.stamps_of(folder, named), facts


def _bytes_rows(folder: Path, path: Path, column: str, named: list[str]) -> pl.DataFrame:
    """Where each row's image lies: in this very file, or in a file that its `path` names."""
    rows: list[dict[str, str | int | None]] = []
    for number, (data, name) in enumerate(image_cells(path, column)):
        if data:
            digest = hashlib.sha256(data).hexdigest()
            file = path.relative_to(folder).as_posix()
            rows.append({"image_file": file, "image_row": number, "image_sha256": digest, "image_reason": None})
        else:
            rows.append(_file_row(folder, name, named))
    return pl.DataFrame(rows, schema=_FOUND_SCHEMA, orient="row")


_FOUND_SCHEMA = pl.Schema({**IMAGE_SCHEMA, "image_reason": pl.String()})


def _file_rows(folder: Path, names: pl.Series, named: list[str]) -> pl.DataFrame:
    rows = [_file_row(folder, name, named) for name in names]
    return pl.DataFrame(rows, schema=_FOUND_SCHEMA, orient="row")


def _file_row(folder: Path, name: str | None, named: list[str]) -> dict[str, str | int | None]:
    name = None if name is None else relative_name(folder, name)
    path, reason = locate(folder, name)
    if name is not None and reason != PATH_REFUSED:
        named.append(name)
    row: dict[str, str | int | None] = dict.fromkeys(_FOUND_SCHEMA)
    if path is None:
        return row | {"image_reason": reason}
    return row | {"image_file": name, "image_sha256": file_sha256(path)}


def image_cells(
    path: Path, column: str, wanted: Sequence[int] | None = None
) -> Iterator[tuple[bytes | None, str | None]]:
    """(bytes, path) of every row of a Parquet file's image column, or of the `wanted` ones (ascending), in order.

    Reads BATCH_ROWS rows at a time, and of the row groups only those with wanted rows. Raises ValueError for a damaged
    file.
    """
    try:
        file = pq.ParquetFile(path)
        start = 0
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            inside = None if wanted is None else {row for row in wanted if start <= row < stop}
            if inside is None or inside:
                row = start
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[column], use_threads=False):
                    numbers = range(row, row + batch.num_rows)
                    row += batch.num_rows
                    if inside is None or inside.intersection(numbers):
                        cells = batch.column(0).to_pylist()
                        yield from (
                            _cell(cell) for n, cell in zip(numbers, cells, strict=True) if inside is None or n in inside
                        )
            start = stop
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}; repair it or leave it out") from error


def _cell(cell: Mapping[str, bytes | str | None] | bytes | None) -> tuple[bytes | None, str | None]:
    if cell is None or isinstance(cell, bytes):
        return cell, None
    data, name = cell["bytes"], cell["path"]
    return (data if isinstance(data, bytes) else None), (name if isinstance(name, str) else None)


def _identified(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds sample_id, source_row and is_duplicate. An image without URL or uid goes by its bytes, as in tars."""
    ids = []
    for position, row in enumerate(rows.select("url", "image_sha256", "caption", "uid").iter_rows()):
        url, digest, caption, uid = row
        origin = url or (f"sha256:{digest}" if digest else f"row#{position}")
        ids.append(sample_id_of(origin, caption, uid))
    identified = (
        rows.drop("uid")
        .with_row_index("source_row")
        .with_columns(pl.Series("sample_id", ids, dtype=pl.String), pl.col("source_row").cast(pl.Int64))
    )
    first = ["sample_id", "source_row", "url", "caption", "is_duplicate", "source_reason"]
    marked = mark_duplicates(identified)
    return marked.select(*first, *(name for name in marked.columns if name not in first))


# -- captions beside the images ---------------------------------------------------------------------------------------


def _beside(source: Path) -> list[list[str | int]]:
    """Name and state of every image below a folder and of every text."""
    names = sorted({name for pair in _pairs(source) for name in pair if name})
    return [[name, *astuple(FileState.of(source / name))] for name in names if (source / name).is_file()]


def _pairs(source: Path) -> list[tuple[str, str]]:
    """(image, text) of every row below a folder, sorted by text; the image is empty where there is only a text.

    A text has the image's name, or lies with it alone in a folder (0/image.jpg, 0/caption.txt, see `keys_of`). Texts
    without image count in folders of which some image has a text.
    """
    images, texts = image_names(source), set(names_below(source, _TEXT_SUFFIXES))
    alone = {text: key for text, key in keys_of([*images, *texts]).items() if text in texts and "/" in text}
    by_folder = {key: text for text, key in alone.items() if key == text.rpartition("/")[0]}
    pairs = []
    for image in images:
        stem, folder = Path(image).with_suffix("").as_posix(), Path(image).parent.as_posix()
        same = (f"{stem}{suffix}" for suffix in _TEXT_SUFFIXES if f"{stem}{suffix}" in texts)
        pairs.append((image, next(same, by_folder.get(folder, f"{stem}.txt"))))
    paired = {Path(image).parent for image, text in pairs if text in texts}
    stems = {Path(text).with_suffix("").as_posix() for _, text in pairs}
    pairs += [
        ("", text)
        for text in texts
        if Path(text).parent in paired and Path(text).with_suffix("").as_posix() not in stems
    ]
    return sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def _rows_beside(source: Path) -> tuple[pl.DataFrame, Stamps, dict[str, int]]:
    """One row per image or text of one name: as in tars, an image without text is a row (missing_txt), and a text
    without image (missing_image)."""
    rows = []
    for image, text in _pairs(source):
        caption, text_reason = caption_in(source, text)
        row = _file_row(source, image or None, [])
        reason = row.pop("image_reason") or text_reason
        rows.append({"caption": caption, "url": None, "uid": None, **row, "source_reason": reason})
    return _identified(pl.DataFrame(rows, schema=_SCHEMA, orient="row")), {}, {}


def caption_in(source: Path, name: str) -> tuple[str | None, str | None]:
    """(caption without the line end, None) or (None, why there is none)."""
    path, reason = locate(source, name)
    if path is None:
        return None, "txt_path_refused" if reason == PATH_REFUSED else "missing_txt"
    if path.stat().st_size > MAX_TEXT_BYTES:
        return None, "txt_too_long"
    try:
        return caption_text(path.read_bytes().decode("utf-8")), None
    except UnicodeDecodeError:
        return None, "txt_not_utf8"
