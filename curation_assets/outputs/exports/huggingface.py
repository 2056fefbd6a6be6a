"""A Hugging Face dataset folder: Parquet with the images inside, and a card generated from the ledger."""

import itertools
import json
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from curation_assets.outputs.exports.croissant import huggingface_croissant, rai_fields, write_croissant
from curation_assets.outputs.exports.formats import export_format
from curation_assets.outputs.exports.manifest import Export, exporting
from curation_assets.outputs.exports.subset import CHOICE_COLUMNS, Subset
from curation_assets.stores.image_formats import format_of
from curation_assets.stores.samples import OWN_ID

MAX_SHARD_BYTES = 450_000_000  # of images: with the other columns below the 500 MB that the hub's viewer likes
ROW_GROUP_ROWS = 100  # a page of the viewer reads one group


@export_format("hf", "Parquet with images and a dataset card")
def export_huggingface(
    subset: Subset, out: Path, *, license: str = "unknown", max_bytes: int = MAX_SHARD_BYTES
) -> Path:
    """Write `data/train-*.parquet` (or validation), README.md and croissant.json to a new folder.

    Image is a struct of bytes and path, as the datasets library stores its Image feature; a pool without images gives
    no such column. Multiplicity is a column. `license`: an identifier that the hub knows, of the data.
    Raises ValueError as `exporting`.
    """
    if max_bytes < 1:
        raise ValueError(f"max_bytes must be at least 1, got {max_bytes}")
    has_images = subset.ctx.pool.has_images
    with exporting(subset, out, "hf") as export:
        data = export.folder / "data"
        data.mkdir()
        schema = _schema(subset, has_images)
        numbered = _numbered(_with_images(export), max_bytes)
        if not has_images:
            numbered = ((0, row) for row in subset.rows.iter_rows(named=True))
        counts = [
            _write_shard((row for _, row in group), data / str(number), schema)
            for number, group in itertools.groupby(numbered, key=itemgetter(0))
        ]
        for number, count in enumerate(counts):  # how many there are is known now
            name = f"data/{subset.part}-{number:05d}-of-{len(counts):05d}.parquet"
            (data / str(number)).rename(export.folder / name)
            export.samples_of[name] = count
        if counts:
            write_croissant(export, huggingface_croissant(export, license, has_images))
            columns = [(field.name, "image" if field.name == "image" else hub_type(field.type)) for field in schema]
            data_files = f"data/{subset.part}-*.parquet"
            export.card = {"license_name": license, "columns": columns, "data_files": data_files, "features": ""}
            export.card["rai"] = rai_fields(export)
    return Path(out)


def _with_images(export: Export) -> Iterator[dict[str, Any]]:
    """Rows of the subset whose image is there, with it."""
    for row in export.subset.rows.iter_rows(named=True):
        image = export.image_of(row)
        if image is None:
            continue
        kind = format_of(image)  # the member's name may end in anything
        extension = "bin" if kind is None else kind.extensions[0]
        yield {**row, "image": {"bytes": image, "path": f"{row['sample_id']}.{extension}"}}


def _numbered(rows: Iterable[dict[str, Any]], max_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row with the number of its file: images of at most `max_bytes` together, one row at least."""
    number = taken = 0
    for row in rows:
        size = len(row["image"]["bytes"])
        if taken and taken + size > max_bytes:
            number, taken = number + 1, 0
        taken += size
        yield number, row


def _schema(subset: Subset, has_images: bool) -> pa.Schema:
    """Arrow schema with the features that the datasets library reads from the file's metadata."""
    types: dict[str, Any] = {"sample_id": pa.string()}
    if has_images:
        types["image"] = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types |= {
        "caption": pa.string(),
        "url": pa.string(),
        "width": pa.int32(),
        "height": pa.int32(),
        "image_sha256": pa.string(),
        "shard": pa.string(),
        "source_row": pa.int64(),
        "multiplicity": pa.int64(),
    }
    types |= {name: pa.string() for name in (OWN_ID, *CHOICE_COLUMNS) if name in subset.rows.columns}
    types |= {name: pa.string() for name in subset.provenance}
    types |= {name: pl.Series(dtype=subset.rows.schema[name]).to_arrow().type for name in subset.signals}
    features: dict[str, Any] = {}
    for name, kind in types.items():
        features[name] = {"_type": "Image"} if name == "image" else {"dtype": hub_type(kind), "_type": "Value"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema(types.items(), metadata=metadata)


def hub_type(kind: pa.DataType) -> str:
    """The hub's name of an Arrow type."""
    names = {"double": "float64", "float": "float32", "string": "string", "large_string": "string"}
    return names.get(str(kind), str(kind))


def _write_shard(rows: Iterator[dict[str, Any]], path: Path, schema: pa.Schema) -> int:
    count = 0
    # Pages end by content: of an export that is pushed again, the hub stores and takes only what changed.
    with pq.ParquetWriter(path, schema, compression="zstd", use_content_defined_chunking=True) as writer:
        while batch := list(itertools.islice(rows, ROW_GROUP_ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema), row_group_size=ROW_GROUP_ROWS)
            count += len(batch)
    return count
