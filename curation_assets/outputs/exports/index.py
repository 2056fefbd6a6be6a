"""An index of a subset: byte ranges in the tars as they are, for webdataset and whoever reads tables, and for
Megatron-Energon in its own layout. No image is copied.
"""

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.core.settings import home_name
from curation_assets.outputs.exports.formats import export_format
from curation_assets.outputs.exports.manifest import Export, exporting
from curation_assets.outputs.exports.subset import Subset
from curation_assets.outputs.loading.places import located
from curation_assets.stores.documents import save_json, save_text
from curation_assets.stores.mapped_rows import slices
from curation_assets.stores.parquet import write_as_frame

INDEX = "index.parquet"
ENERGON = "energon"  # folder of what Megatron-Energon reads
_SAMPLES = "samples.jsonl"
_METADATASET = f"""\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: {_SAMPLES}
    aux:
      images: images
"""
#: As Megatron-Energon 7 has them. It reads images by `sample_parts`; where a whole sample lies in a tar is not listed.
_TABLES = """
create table samples (tar_file_id integer not null, sample_key text not null unique, sample_index integer not null,
                      byte_offset integer, byte_size integer);
create table sample_parts (tar_file_id integer, sample_index integer, part_name text, content_byte_offset integer,
                           content_byte_size integer);
"""
_INDEXES = """
create index idx_samples_by_tar_and_idx on samples (tar_file_id, sample_index);
create index idx_sample_parts_full on sample_parts
    (tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


@export_format("index", "byte ranges in the tars as they are")
def export_index(subset: Subset, out: Path) -> Path:
    """`out`/index.parquet: one row per entry, and `out`/energon with the same for Megatron-Energon.

    Columns of the index: key (`<sample_id>-0` …, as `export_webdataset` names entries), sample_id, tar (absolute path,
    or URL of an object), member, extension, offset and length of the image in the tar in bytes, sha256 of these bytes,
    width, height, caption. Images are referred to as they are: GIF, BMP, AVIF and 16-bit grey, too.
    Samples whose image is missing or has another size are in missing.tsv. Raises ValueError as `exporting`.
    """
    with exporting(subset, out, "index") as export:
        rows = _indexed(export)
        schema, count = _entries(rows.clear()).schema, export.counts[1]
        write_as_frame(export.folder / INDEX, map(_entries, slices(rows)), schema, count)
        export.samples_of[INDEX] = count
        if rows.height:
            _write_energon(export.folder / ENERGON, rows)
    return Path(out) / INDEX


def _indexed(export: Export) -> pl.DataFrame:
    """Rows as the index has them, with their multiplicity; those without a place are lost."""
    rows, lost = located(export.subset)
    export.lose(lost)
    paths = {tar: home_name((export.subset.ctx.store.root / tar).resolve()) for tar in rows["tar"].unique()}
    return rows.select(
        "sample_id",
        "multiplicity",
        pl.col("tar").replace(paths),
        "member",
        pl.col("member").str.extract(r"\.([^./]+)$").str.to_lowercase().alias("extension"),
        *("offset", "length", pl.col("image_sha256").alias("sha256"), "width", "height"),
        pl.col("caption").fill_null(""),
    )


def _entries(rows: pl.DataFrame) -> pl.DataFrame:
    """Each row as often as it counts, with a key of its own."""
    numbers = np.repeat(np.arange(rows.height), rows["multiplicity"].to_numpy())
    entries = rows[numbers].with_columns(copy=pl.int_range(pl.len()).over("sample_id"))
    return entries.select(pl.format("{}-{}", "sample_id", "copy").alias("key"), pl.exclude("multiplicity", "copy"))


def _write_energon(folder: Path, rows: pl.DataFrame) -> None:
    """A crude dataset of captions, `samples.jsonl`, and its images as an auxiliary one that has an index alone."""
    meta = folder / "images" / ".nv-meta"
    meta.mkdir(parents=True)
    save_text(folder / "metadataset.yaml", _METADATASET)
    counts = dict(rows.lazy().group_by("tar", maintain_order=True).len().collect(engine="streaming").iter_rows())
    numbers = {tar: number for number, tar in enumerate(counts)}
    save_json(meta / ".info.json", {"shard_counts": counts})
    numbered = rows.with_columns(pl.col("tar").replace_strict(numbers), at=pl.int_range(pl.len()))
    with closing(sqlite3.connect(meta / "index.sqlite")) as database:
        database.executescript(_TABLES)
        samples = numbered.select("tar", "sample_id", "at").iter_rows()
        database.executemany("insert into samples values (?, ?, ?, null, null)", samples)
        parts = numbered.select("tar", "at", "extension", "offset", "length").iter_rows()
        database.executemany("insert into sample_parts values (?, ?, ?, ?, ?)", parts)
        database.executescript(_INDEXES)
        database.commit()
    with (folder / _SAMPLES).open("wb") as file, (folder / f"{_SAMPLES}.idx").open("wb") as ends:
        ends.write(struct.pack("<Q", 0))
        for part in map(_entries, slices(rows)):
            for key, sample_id, extension, caption in part["key", "sample_id", "extension", "caption"].iter_rows():
                line = {"key": key, "image": f"{sample_id}.{extension}", "caption": caption}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                ends.write(struct.pack("<Q", file.tell()))
