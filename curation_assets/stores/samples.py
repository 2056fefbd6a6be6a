"""raw/samples: every input row with its image, or with the reason why it has none."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.stores.caption_text import are_blank, is_blank
from curation_assets.stores.denylist import TAKEDOWN, Denylist
from curation_assets.stores.hash_lists import QUARANTINED, HashList
from curation_assets.stores.images import ImageLimits, ImageRejected, check_image, tar_index
from curation_assets.stores.provenance import GIVEN

NO_HASHES = HashList()

#: Grain of raw/registered_shards: one row per input row.
REGISTERED_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String,
        "shard": pl.String,
        "source_row": pl.Int64,  # row index in the source: of the whole table, or of the tar's sorted keys
        "url": pl.String,
        "caption": pl.String,
        "is_duplicate": pl.Boolean,  # an earlier usable row has the same sample_id
        "tar": pl.String,  # webdataset pools: where the image lies already
        "member": pl.String,
        "source_reason": pl.String,  # what is wrong with the sample as delivered (tars, images of one's own)
    }
)

#: Grain of raw/samples: one row per input row, as registered.
SAMPLES_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String,
        "shard": pl.String,
        "source_row": pl.Int64,
        "url": pl.String,
        "caption": pl.String,
        "tar": pl.String,  # relative to the pool's work folder, or absolute; null without a usable image
        "member": pl.String,
        "has_image": pl.Boolean,
        "width": pl.Int32,  # of the stored image, px
        "height": pl.Int32,
        "original_width": pl.Int32,  # before img2dataset scaled it down; null where unknown
        "original_height": pl.Int32,
        "image_bytes": pl.Int64,
        "image_sha256": pl.String,  # of the stored image file
        "original_sha256": pl.String,  # of the file as downloaded; null where unknown
        "status": pl.String,  # kept, dropped or failed
        "reason": pl.String,  # null iff kept
    }
)


#: Column of registered rows and samples, in pools that have such: their owner's id, where it is no sample_id.
OWN_ID = "own_id"


def mark_duplicates(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `is_duplicate`: an earlier row has the same sample_id. Rows without a caption or with a `source_reason`
    neither are nor make duplicates: a broken first copy must not cost us the sound second one.
    """
    is_repeated = ~pl.struct("sample_id", are_usable().alias("is_usable")).is_first_distinct()
    return rows.with_columns(is_duplicate=are_usable() & is_repeated)


def are_usable() -> pl.Expr:
    """Whether rows have a caption and no `source_reason`."""
    return ~are_blank(pl.col("caption")) & pl.col("source_reason").is_null()


def end_without_image(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(status, reason) of a registered row that ends whatever its image is; (None, None) of all others.

    Dropped: taken down, an earlier twin, nothing written in its caption. Failed: as delivered (missing_txt, …).
    """
    caption, delivered = row["caption"], row["source_reason"]
    if delivered == TAKEDOWN:
        return "dropped", TAKEDOWN
    if row["is_duplicate"]:
        return "dropped", "duplicate_sample_id"
    if delivered is not None and (caption is None or not is_blank(caption)):
        return "failed", delivered
    return ("dropped", "empty_caption") if caption is None or is_blank(caption) else (None, None)


def without_denied(rows: pl.DataFrame, denylist: Denylist) -> pl.DataFrame:
    """Rows that the denylist knows keep their id and source and lose everything else: they end as dropped (takedown).

    Rows and order stay. Columns `source_reason` and, where there are any, `member` and `*sha256` are read and emptied.
    """
    is_denied = denylist.denied(rows)
    if not is_denied.any():
        return rows
    if "source_reason" not in rows.columns:
        rows = rows.with_columns(source_reason=pl.lit(None, pl.String))
    whole = taken_down_rows(rows)
    return rows.with_columns(
        pl.when(is_denied).then(whole[name]).otherwise(pl.col(name)).alias(name) for name in rows.columns
    )


def taken_down_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Registered rows once their samples are taken down: id, place and source stay."""
    telling = {"url", "caption", "member", "image_file", "image_sha256", OWN_ID, *GIVEN} - {"source"}
    emptied = [pl.lit(None, kind).alias(name) for name, kind in rows.schema.items() if name in telling]
    repeats = [pl.lit(False).alias("is_duplicate")] if "is_duplicate" in rows.columns else []
    return rows.with_columns(*emptied, *repeats, source_reason=pl.lit(TAKEDOWN))


def build_sample_rows(
    registered: pl.DataFrame,
    downloads: pl.DataFrame,
    *,
    work: Path,
    download_folder: str,
    has_images: bool,
    limits: ImageLimits,
    hash_list: HashList = NO_HASHES,
) -> pl.DataFrame:
    """One row per registered row, in the same order (SAMPLES_SCHEMA).

    Precedence of the terminal state: dropped (duplicate_sample_id, empty_caption), failed as delivered (missing_txt,
    missing_image, …), failed in the download, failed as an image (image_undecodable, image_truncated,
    image_too_many_pixels, …), kept. A null caption is empty_caption too, unless the delivery is at fault.
    An image on `hash_list` is dropped as quarantined, without url, caption, position or hash: nothing can show it.
    `download_folder`: where the downloaded tars of this shard lie, relative to `work`.
    Raises ValueError when `downloads` is not, row by row, about the same samples.
    """
    keys = ["sample_id", "source_row"]
    schema = pl.Schema({**SAMPLES_SCHEMA, **({OWN_ID: pl.String()} if OWN_ID in registered.columns else {})})
    if not registered.select(keys).equals(downloads.select(keys)):
        raise ValueError(
            f"raw/downloads ({downloads.height} rows) does not carry on raw/registered_shards "
            f"({registered.height} rows) row by row; materialise raw/downloads again"
        )
    rows = []
    for source_row, fetched in zip(registered.iter_rows(named=True), downloads.iter_rows(named=True), strict=True):
        row: dict[str, Any] = dict.fromkeys(schema)
        carried = ("sample_id", "shard", "source_row", "url", "caption", OWN_ID)
        row |= {name: source_row[name] for name in carried if name in schema}
        row |= {"has_image": False, "status": "kept"}
        status, reason = end_without_image(source_row)
        if status is not None:
            row |= {"status": status, "reason": reason}
        elif fetched["status"] != "kept":
            row |= {"status": fetched["status"], "reason": fetched["reason"]}
        elif has_images:
            row |= {name: fetched[name] for name in ("original_width", "original_height", "original_sha256")}
            is_delivered = source_row["member"] is not None
            tar = source_row["tar"] if is_delivered else f"{download_folder}/{fetched['tar']}"
            member = source_row["member"] if is_delivered else fetched["member"]
            row |= _image_columns(work, tar, member, limits, hash_list, fetched["original_sha256"])
            if row["reason"] == QUARANTINED:
                row |= {name: None for name in _SHOWING if name in schema}
        rows.append(row)
    return pl.DataFrame(rows, schema=schema, orient="row")


#: Columns of raw/samples that could lead to a quarantined image or name it.
_SHOWING = (OWN_ID, "url", "caption", "original_width", "original_height", "original_sha256")


def _image_columns(
    work: Path, tar: str, member: str, limits: ImageLimits, hash_list: HashList, original_sha256: str | None
) -> dict[str, Any]:
    try:
        data = tar_index(work / tar).read(member)
        if hash_list and hash_list.matches(data, [original_sha256]):
            return {"status": "dropped", "reason": QUARANTINED}
        facts = check_image(data, limits)
    except ImageRejected as rejection:
        return {"status": "failed", "reason": f"image_{rejection.reason}"}
    return {
        "tar": tar,
        "member": member,
        "has_image": True,
        "width": facts.width,
        "height": facts.height,
        "image_bytes": len(data),
        "image_sha256": hashlib.sha256(data).hexdigest(),
    }
