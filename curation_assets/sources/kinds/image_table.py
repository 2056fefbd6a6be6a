"""Pools whose images lie in Parquet files or in a folder: they are copied, never downloaded.

sources/image_columns.py has the three layouts, and which columns hold what.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.base import Found, Note, Offered
from curation_assets.sources.image_columns import (
    caption_in,
    detect_images,
    folder_of,
    holds_bytes,
    image_cells,
    pairs_in,
    tables_in,
)
from curation_assets.sources.local_images import IMAGE_SCHEMA, LocalImages, images_of_files
from curation_assets.sources.pool_facts import PoolFacts
from curation_assets.sources.split import Reading, Split
from curation_assets.sources.tables import TableSource, kinds_of, listed, rows_that_fail
from curation_assets.sources.text_columns import (
    carried_columns,
    columns_of,
    given_columns_of,
    own_id_column,
    text_parts,
)
from curation_assets.stores.caption_text import are_blank
from curation_assets.stores.damaged_tables import read_sound_rows, schema_of
from curation_assets.stores.file_hash import FileState, file_sha256
from curation_assets.stores.image_files import PATH_REFUSED, image_names, locate, relative_name
from curation_assets.stores.provenance import GIVEN
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.text_format import SUFFIXES, TextFormat, table_suffix


class ImageTable(TableSource):
    """Images in Parquet files, or image files that a table names, or KEY.jpg with KEY.txt."""

    order = 20
    opens_urls = False
    shown_columns: ClassVar[tuple[str, ...]] = ("image", "caption", "url", "uid")

    def detect(self, offered: Offered) -> Found | None:
        source = _where_tables_lie(offered.path)
        if source.is_file() and not table_suffix(source):
            return None
        columns = {ours: theirs for ours, theirs in offered.columns.items() if ours not in GIVEN}
        detected = detect_images(source, columns, offered.text)
        if detected is None:
            return None
        if "image" not in detected:
            return Found(source, {})
        own_id = own_id_column(source, detected.get("uid"), offered.text)
        named = detected | ({OWN_ID: own_id} if own_id else {})
        schema = columns_of(tables_in(source)[0], offered.text)
        return Found(source, named | given_columns_of(source, offered.columns, schema, list(named.values())))

    def check(self, pool: PoolFacts, settings: Settings) -> None:
        """Raise ValueError for a column that is not there, and where no row has an image."""
        super().check(pool, settings)
        split = self.split(pool, settings)
        if not split.rows:
            raise ValueError(f"{pool.source} holds no rows; expected images with captions")
        if any(part["image_file"].count() for part in split.columns("image_file")):
            return
        raise ValueError(
            f"{pool.source}: none of its {sum(split.rows.values()):,} rows has an image: {rows_that_fail(split)}; "
            f"expected bytes or file names from {folder_of(Path(pool.source))} on, in column "
            f"{pool.columns.get('image')}; name another with --image-column NAME ('none': captions only)"
        )

    def reading(self, pool: PoolFacts, source: Path) -> Reading:
        """Rows with the columns of `url_table` and those of IMAGE_SCHEMA. Where an image cannot be
        read, its row has null in the latter and a source_reason. Every image is read once per
        version of the source, for its hash; none is held in memory."""
        text, folder = pool.text_format, folder_of(source)
        columns = {name: theirs for name in _READ if (theirs := pool.columns.get(name))}
        image, numbers, carried = columns.pop("image", None), self.numbers(pool), carried_columns(pool.columns)
        tables = [] if image is None else tables_in(source)
        if image is not None and not tables:
            raise FileNotFoundError(f"source {source} has no table ({', '.join(SUFFIXES)}) any more; put it back")
        names = [path.relative_to(folder).as_posix() for path in tables] or _beside(source)
        facts = {"names": names, "columns": [image, columns]}
        if image is None:
            return Reading([], facts, lambda: [_rows_beside(source)])
        named, counts = list[str](), dict[str, int]()
        rows = partial(_rows_of_tables, source, tables, image, columns | carried, text, numbers, named, counts)
        return Reading(tables, facts, rows, named, counts)

    def schema(self, pool: PoolFacts) -> Mapping[str, pl.DataType | type[pl.DataType]]:
        return IMAGE_SCHEMA

    def download_config(self, pool: PoolFacts) -> dict[str, Any]:
        """Nothing is fetched or scaled."""
        return {"max_bytes": pool.download.max_bytes}

    def serving(
        self, pool: PoolFacts, requested: pl.DataFrame, settings: Settings
    ) -> AbstractContextManager[Mapping[str, Any]]:
        folder = folder_of(self.path(pool, settings))
        images = partial(images_of_files, folder, pool.columns.get("image"))
        return nullcontext({"local": LocalImages.of(pool, requested, images)})

    def describe_rows(self, pool: PoolFacts, split: Split) -> Iterator[Note]:
        yield Note(understood(pool, split), "fact")

    def collected(self, pool: PoolFacts) -> str:
        return "Images and captions came as a table or folder of their owner and were registered as they are."


SOURCE = ImageTable()
_READ = ("image", "caption", "url", "uid", OWN_ID)


def _where_tables_lie(source: Path) -> Path:
    """The folder `data/` of a downloaded Hugging Face data set, or the source itself."""
    data = source / "data"
    is_data_set = source.is_dir() and any(data.glob("*.parquet")) and not tables_in(source)
    return data if is_data_set else source


def understood(pool: PoolFacts, split: Split) -> str:
    """One sentence on a pool: its rows, images and captions, and why rows fail."""
    images = inside = captions = duplicates = 0
    reasons: Counter[str] = Counter()
    for rows in split.columns("caption", "is_duplicate", "source_reason", "image_row"):
        captions += rows.filter(~are_blank(pl.col("caption"))).height
        has_image = pl.col("source_reason").is_null() | pl.col("source_reason").str.contains("txt")
        images += rows.filter(has_image).height
        inside += int(rows["image_row"].is_not_null().sum())
        duplicates += int(rows["is_duplicate"].sum())
        reasons.update(kinds_of(rows["source_reason"]))
    where = f"in column {pool.columns.get('caption')}" if "image" in pool.columns else "in KEY.txt beside them"
    if split.facts.get("captions_in_lists"):
        where += " (lists: the first of each)"
    in_files = f" ({inside} in Parquet, {images - inside} in files)" if inside else ""
    sentence = f"Understood: {sum(split.rows.values())} rows, {images} images{in_files}, {captions} captions {where}"
    notes = [f"rows that fail: {listed(reasons)}"] if reasons else []
    notes += [f"rows that repeat an earlier one: {duplicates}"] if duplicates else []
    unlisted = split.facts.get("unlisted_images", 0)
    notes += [f"images of the folder that no row names, left out: {unlisted}"] if unlisted else []
    return "; ".join([sentence, *notes]) + "."


# -- rows and their images --------------------------------------------------------------------------------------------


_SCHEMA = pl.Schema(
    {"caption": pl.String(), "url": pl.String(), "uid": pl.String(), **IMAGE_SCHEMA, "source_reason": pl.String()}
)
_FOUND_SCHEMA = pl.Schema({**IMAGE_SCHEMA, "image_reason": pl.String()})


def _rows_of_tables(
    source: Path,
    tables: Sequence[Path],
    image: str,
    columns: Mapping[str, str],
    text: TextFormat,
    numbers: Mapping[str, str],
    named: list[str],
    counts: dict[str, int],
) -> Iterator[pl.DataFrame]:
    """Rows of all tables with their images, a frame per table; fills `Reading.named` and `counts`."""
    folder, has_bytes, has_lists = folder_of(source), False, False
    texts_read = {**dict.fromkeys(("caption", "url", "uid")), **columns}
    for path in tables:
        schema = schema_of(path, text)
        dtype = schema.get(image)
        if dtype is None:
            raise ValueError(f"{path} has no column {image!r} for image, as the files before it have")
        has_bytes = holds_bytes(dtype)
        texts = pl.concat(text_parts(path, texts_read, numbers, text))
        if has_bytes:
            cells = image_cells(path, image)
        else:
            names = read_sound_rows(path, [image], text=text)[image].cast(pl.String)
            cells = ((None, name) for name in names)
        rows = texts.hstack(_images_of(folder, path, cells, named))
        rows = rows.with_columns(source_reason=pl.coalesce("source_reason", "image_reason"))
        yield rows.select(*_SCHEMA, *numbers, *(name for name in texts_read if name not in _SCHEMA))
        has_lists = has_lists or isinstance(schema.get(columns.get("caption", "")), pl.List)
    counts["captions_in_lists"] = int(has_lists)
    if source.is_dir() and not has_bytes:
        counts["unlisted_images"] = len(set(image_names(folder)) - {Path(name).as_posix() for name in named})


def _images_of(
    folder: Path, path: Path, cells: Iterable[tuple[bytes | None, str | None]], named: list[str]
) -> pl.DataFrame:
    """Where each row's image lies: in this table, if its cell has bytes, or in the file that it names."""
    rows: list[dict[str, str | int | None]] = []
    for number, (data, name) in enumerate(cells):
        if data:
            digest = hashlib.sha256(data).hexdigest()
            file = path.relative_to(folder).as_posix()
            rows.append({"image_file": file, "image_row": number, "image_sha256": digest, "image_reason": None})
        else:
            rows.append(_file_row(folder, name, named))
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


# -- captions beside the images ---------------------------------------------------------------------------------------


def _beside(source: Path) -> list[list[str | int]]:
    """Name and state of every image and every text below a folder."""
    names = sorted({name for pair in pairs_in(source) for name in pair if name})
    return [[name, *astuple(FileState.of(source / name))] for name in names if (source / name).is_file()]


def _rows_beside(source: Path) -> pl.DataFrame:
    """A row per image with its text. As in tars, an image without text is a row (missing_txt), and
    so is a text without image (missing_image)."""
    rows = []
    for image, text in pairs_in(source):
        caption, text_reason = caption_in(source, text)
        row = _file_row(source, image or None, [])
        reason = row.pop("image_reason") or text_reason
        rows.append({"caption": caption, "url": None, "uid": None, **row, "source_reason": reason})
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
