"""What `curate pool add` says of a source: what it took for what, and what it could not use."""

import re
import tarfile
from pathlib import Path

import polars as pl

from curation_assets.sources.declaration import Pool
from curation_assets.sources.kinds import image_table as image_tables
from curation_assets.sources.kinds.url_table import Split, unused_ids
from curation_assets.sources.kinds.webdataset import find_tars, no_files
from curation_assets.sources.options import SourceOptions
from curation_assets.stores.caption_text import are_blank
from curation_assets.stores.damaged_tables import schema_of
from curation_assets.stores.images import BLOCK, compression_of
from curation_assets.stores.parquet import read_parquet, scan_parquet
from curation_assets.stores.text_format import dialect_of, table_suffix

#: Columns of DataComp's metadata, and their usual variants.
CLIP_COLUMNS = ("clip_b32_similarity_score", "clip_l14_similarity_score", "clip_score", "similarity")


def understood(pool: Pool, split: Split) -> str:
    """One sentence on a pool of kind image_table: rows, images, captions, and every reason for which a row has none."""
    columns = ["caption", "is_duplicate", "source_reason", "image_row"]
    parts = [read_parquet(split.folder / f"{shard}.parquet", columns=columns) for shard in sorted(split.rows)]
    rows = pl.concat(parts)
    where = {True: "in KEY.txt beside them", False: f"in column {pool.columns.get('caption')}"}[
        "image" not in pool.columns
    ]
    if split.facts.get("captions_in_lists"):
        where += " (lists: the first of each)"
    captions = rows.filter(~are_blank(pl.col("caption"))).height
    images = rows.filter(pl.col("source_reason").is_null() | pl.col("source_reason").str.contains("txt")).height
    inside = int(rows["image_row"].is_not_null().sum())
    in_files = f" ({inside} in Parquet, {images - inside} in files)" if inside else ""
    sentence = f"Understood: {rows.height} rows, {images} images{in_files}, {captions} captions {where}"
    listed = _counted(rows["source_reason"])
    notes = [f"rows that fail: {listed}"] if listed else []
    duplicates = int(rows["is_duplicate"].sum())
    notes += [f"rows that repeat an earlier one: {duplicates}"] if duplicates else []
    unlisted = split.facts.get("unlisted_images", 0)
    notes += [f"images of the folder that no row names, left out: {unlisted}"] if unlisted else []
    return "; ".join([sentence, *notes]) + "."


def unused_images(pool: Pool) -> list[str]:
    """Sentences on columns of images, or of their names, that a pool does not use."""
    if pool.kind not in ("url_table", "image_table") or not pool.columns:
        return []
    table = image_tables.tables_in(Path(pool.source))[0]
    schema, used = schema_of(table, pool.text_format), set(pool.columns.values())
    found = image_tables.unused_images(table, schema, [name for name in used if name])
    notes = [f"Column {name} ({schema[name]}) holds images and is not used: --image-column names one" for name in found]
    if not pool.has_images:
        names = [name for name in schema if name.lower() in image_tables.FILE_NAMES and name not in {*used, *found}]
        notes += [
            f"Column {name} is not used, and the pool has captions only: it names no file of "
            f"{image_tables.folder_of(Path(pool.source))} (--image-column {name}, with the images beside the table)"
            for name in names
        ]
    return notes


def rows_that_fail(split: Split) -> str:
    """'csv_malformed 2, …' of a pool of kind url_table: its rows that cannot be read; empty where all can."""
    parts = (split.folder / f"{shard}.parquet" for shard in sorted(split.rows))
    scans = [scan_parquet(part) for part in parts]
    if not scans or "source_reason" not in scans[0].collect_schema():  # all parts of a source have it, or none
        return ""
    rows = pl.concat([scan.select("source_reason") for scan in scans]).collect()
    return _counted(rows["source_reason"])


def _counted(reasons: pl.Series) -> str:
    """Kinds of reasons with their counts, the most frequent first."""
    kinds = pl.DataFrame({"kind": reasons.drop_nulls().str.split(":").list.first()})
    counted = kinds["kind"].value_counts().sort("count", "kind", descending=[True, False])
    return ", ".join(f"{kind} {count}" for kind, count in counted.iter_rows())


def known_scores(pool: Pool) -> list[str]:
    """Columns of a pool's table that hold CLIP cosines by their name, and that the pool does not take yet."""
    if pool.kind not in ("url_table", "image_table") or not pool.columns or SourceOptions.of(pool).given_signals:
        return []
    tables = image_tables.tables_in(Path(pool.source))
    names = schema_of(tables[0], pool.text_format)
    return [name for name in CLIP_COLUMNS if name in names]


#: Words in names of files and folders → the part of a data set that they stand for.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}


def split_notes(pool: Pool, source: Path) -> list[str]:
    """A sentence where files or folders of a source are named as several parts of a data set: they are one pool."""
    if pool.kind == "webdataset":
        names = [tar.name for tar in find_tars(source)]
    elif pool.kind == "world" or not source.is_dir():
        return []
    else:
        entries = sorted(path for path in source.iterdir() if not path.name.startswith("."))
        names = [path.name for path in entries if path.is_dir() or table_suffix(path)]
    examples: dict[str, str] = {}
    for name in names:
        for word in re.findall("[a-z]+", name.lower()):
            if word in SPLITS:
                examples.setdefault(SPLITS[word], name)
    if len(examples) < 2:
        return []
    named, parts = ", ".join(sorted(examples.values())), ", ".join(sorted(examples))
    return [
        f"{named} look like parts of a data set ({parts}); they are one pool, and any of them may be selected. To keep "
        "them apart: a folder and a pool for each"
    ]


def read_as(pool: Pool) -> list[str]:
    """Sentences on how the tables of a pool are read: their dialect where it is none of the usual two, lists of
    captions, columns that are named as ids and hold none."""
    if pool.kind not in ("url_table", "image_table") or not pool.columns:
        return []
    table = image_tables.tables_in(Path(pool.source))[0]
    suffix, schema = table_suffix(table), schema_of(table, pool.text_format)
    notes = unused_ids(schema, pool.columns.get("uid"))
    if suffix in (".csv", ".tsv"):
        dialect = dialect_of(table, pool.text_format, suffix)
        if (dialect.encoding, dialect.separator, dialect.quoting) not in USUAL:
            notes.append(f"{table.name} is read with {dialect}; otherwise: --separator, --quoting, --encoding")
    if pool.kind == "url_table" and isinstance(schema.get(str(pool.columns["caption"])), pl.List):
        notes.append(f"Column {pool.columns['caption']} holds lists of captions: the first of each is taken")
    return notes


#: Encoding, separator and quotes of csv and tsv files that need no word.
USUAL = (("utf-8", ",", "doubled"), ("utf-8", "\t", "none"), ("utf-8-sig", ",", "doubled"), ("utf-8-sig", "\t", "none"))


def tar_notes(source: Path) -> list[str]:
    """Sentences on tars that cannot be read, by their first block, and on what is called a tar and is none."""
    notes = [
        f"{path.name} is {'a folder' if path.is_dir() else 'no file'}, not a tar: left out" for path in no_files(source)
    ]
    for tar in find_tars(source):
        try:
            with tar.open("rb") as file:
                wrong = _wrong_begin(file.read(BLOCK))
        except OSError as error:
            wrong = f"cannot be read ({error.strerror})"
        if wrong is not None:
            notes.append(f"{tar.name} {wrong}")
    packed = [path.name for path in sorted(source.glob("*.tar.*")) if path.suffix in PACKED] if source.is_dir() else []
    return notes + [f"{name} is compressed and left out: unpack it" for name in packed]


PACKED = (".gz", ".bz2", ".xz", ".zst")


def _wrong_begin(head: bytes) -> str | None:
    """What is wrong with a tar that begins so; None where nothing is."""
    compression = compression_of(head)
    if compression is not None:
        return f"is {compression[0]}-compressed: {compression[1]} it"
    if not head.strip(b"\0"):
        return "has no members" if head else "has 0 bytes"
    try:
        tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return "is no tar, or begins with a damaged header"
    return None
