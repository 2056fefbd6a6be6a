"""Columns of images and of their file names in tables that people bring, and captions in files beside images.

Three layouts. Parquet files with a column of image bytes, such as Hugging Face's image type, struct{bytes, path}. A
table (csv, tsv, jsonl, parquet) with a column of file names, beside the images. A folder of KEY.jpg with KEY.txt.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from curation_assets.sources.pool_facts import ColumnNames
from curation_assets.sources.table_files import tables_of
from curation_assets.sources.text_columns import COLUMN_NAMES, columns_of, holds_text, text_column
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_of_file
from curation_assets.stores.damaged_tables import read_sound_rows, schema_of
from curation_assets.stores.image_files import PATH_REFUSED, has_image_files, image_names, locate, names_below
from curation_assets.stores.image_formats import format_of
from curation_assets.stores.tar_samples import TEXT_EXTENSIONS, keys_of
from curation_assets.stores.text_format import TextFormat, dialect_of, table_suffix

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


def folder_of(source: Path) -> Path:
    """The folder that names of images count from."""
    return source if source.is_dir() else source.parent


def tables_in(source: Path) -> list[Path]:
    """The tables of a source, sorted by name: of a folder `metadata.*` where there is one. Raises ValueError for
    several formats."""
    files = tables_of(source)
    return [path for path in files if path.name.partition(".")[0] == "metadata"] or files


def detect_images(
    source: Path, given: ColumnNames | None = None, text: TextFormat | None = None
) -> dict[str, str] | None:
    """The columns of a source that brings its images along, our name → the source's, without `image` for KEY.jpg with
    KEY.txt; None where it is a table of URLs or of captions alone.

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
    if not (holds_bytes(schema[image]) or holds_text(schema[image])):
        raise ValueError(
            f"{source}: column {image!r} (image) must hold image bytes, struct{{bytes, path}} or file names, "
            f"got {schema[image]}; name another with --image-column"
        )
    names = {"caption": CAPTION_NAMES, "url": COLUMN_NAMES["url"], "uid": COLUMN_NAMES["uid"]}
    schema = columns_of(tables[0], text)
    others = {ours: text_column(source, ours, given, schema, usual, besides=image) for ours, usual in names.items()}
    if others["caption"] is None:
        raise ValueError(
            f"{source}: no caption column; expected one of {list(CAPTION_NAMES)}, got {list(schema)}; "
            "name it with --caption-column NAME"
        )
    return {"image": image, **{ours: theirs for ours, theirs in others.items() if theirs is not None}}


def _without_table(source: Path, given: ColumnNames) -> dict[str, str] | None:
    """A folder without a table: images with their captions beside them, or nothing for us."""
    if not source.is_dir() or not has_image_files(source):
        return None
    if given:
        raise ValueError(f"{source} holds images and no table: columns do not apply, got {dict(given)}")
    names = image_names(source)
    if not any((source / text).is_file() for image, text in pairs_in(source) if image):
        raise ValueError(
            f"{source} holds {len(names)} images such as {names[0]} and no captions; expected a table beside them "
            f"(metadata.csv or any csv, tsv, jsonl or parquet) with a column file_name and one of captions, or "
            f"{Path(names[0]).with_suffix('.txt')} for {names[0]}, and so on"
        )
    return {}


def holds_bytes(dtype: Any) -> bool:
    """Hugging Face's image type, or plain bytes."""
    if isinstance(dtype, pl.Struct):
        fields = {field.name: field.dtype for field in dtype.fields}
        return {"bytes", "path"} <= set(fields) and fields["bytes"] in (pl.Binary, pl.Null)
    return dtype == pl.Binary


def _bytes_column(path: Path, schema: pl.Schema) -> str | None:
    """The column of image bytes: named so by Hugging Face's metadata, else by its type and name; None without one."""
    candidates = [name for name, dtype in schema.items() if holds_bytes(dtype)]
    stated = [name for name in _stated_images(path) if name in candidates]
    structs = [name for name in candidates if isinstance(schema[name], pl.Struct)]
    usual = [name for name in candidates if name.lower() in BYTES_NAMES]
    chosen = stated or structs or usual
    return min(chosen, key=lambda name: _rank(name, BYTES_NAMES)) if chosen else None


def _only_images(source: Path, table: Path, schema: pl.Schema, given: ColumnNames) -> str | None:
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
        is_listed = isinstance(dtype, lists) and (holds_bytes(inner) or bool(_IMAGE_NAME.fullmatch(name.lower())))
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # not in the form that the library writes
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
    suffix = table_suffix(table)
    how = f"; it is read with {dialect_of(table, text, suffix)}" if suffix in (".csv", ".tsv") else ""
    if shown:
        raise ValueError(
            f"{table} names no image of {folder}: its column {next(iter(shown))} has {next(iter(shown.values()))!r}, "
            f"the folder {example!r}; expected names relative to the folder (another column: --image-column NAME){how}"
        )
    if by_rank:
        raise ValueError(
            f"{table}: no cell of its column {by_rank[0]} can be read; expected names such as {example}{how}: separate "
            "the header and the rows alike (another column: --image-column NAME)"
        )
    named = [number for number, name in enumerate(schema) if locate(folder, name)[0] is not None]
    if named:
        raise ValueError(
            f"{table} has no header: its first line names the image {list(schema)[named[0]]}; give --no-header "
            f"--image-column column_{named[0]} --caption-column column_N, counted from 0"
        )
    raise ValueError(
        f"{table} lies beside images such as {example} and has no column of their names; expected one of "
        f"{list(FILE_NAMES)}, got {list(schema)}; name it with --image-column NAME ('none': captions only)"
        f"{how}{', another: --separator' * bool(how)}"
    )


def _holds_names(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Enum)


def image_cells(
    path: Path, column: str, wanted: Sequence[int] | None = None
) -> Iterator[tuple[bytes | None, str | None]]:
    """(bytes, path) of every row of a Parquet file's image column, or of the `wanted` ones (ascending), in order.

    Reads BATCH_ROWS rows at a time, and of the row groups only those with wanted rows. Raises ValueError for a damaged
    file.
    """
    try:
        file, start = pq.ParquetFile(path), 0
        chosen = None if wanted is None else set(wanted)
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            if chosen is None or not chosen.isdisjoint(range(start, stop)):
                numbers = itertools.count(start)
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[column], use_threads=False):
                    for cell, number in zip(batch.column(0), numbers, strict=False):
                        if chosen is None or number in chosen:
                            yield _cell(cell.as_py())
            start = stop
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}; repair it or leave it out") from error


def _cell(cell: Mapping[str, bytes | str | None] | bytes | None) -> tuple[bytes | None, str | None]:
    if cell is None or isinstance(cell, bytes):
        return cell, None
    data, name = cell["bytes"], cell["path"]
    return (data if isinstance(data, bytes) else None), (name if isinstance(name, str) else None)


def pairs_in(source: Path) -> list[tuple[str, str]]:
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


def caption_in(source: Path, name: str) -> tuple[str | None, str | None]:
    """(caption without the line end, None) or (None, why there is none)."""
    path, reason = locate(source, name)
    if path is None:
        return None, "txt_path_refused" if reason == PATH_REFUSED else "missing_txt"
    if path.stat().st_size > MAX_TEXT_BYTES:
        return None, "txt_too_long"
    try:
        return caption_of_file(path.read_bytes()), None
    except UnicodeDecodeError:
        return None, "txt_not_utf8"
