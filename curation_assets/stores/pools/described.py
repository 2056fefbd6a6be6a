"""What `curate pool add` says of a source: what it took for what, and what it could not use."""

from pathlib import Path

import polars as pl

from curation_assets.stores import image_tables
from curation_assets.stores.pools.declaration import Pool
from curation_assets.stores.url_tables import Split

#: Columns of DataComp's metadata, and their usual variants.
CLIP_COLUMNS = ("clip_b32_similarity_score", "clip_l14_similarity_score", "clip_score", "similarity")


def understood(pool: Pool, split: Split) -> str:
    """One sentence on a pool of kind image_table: rows, images, captions, and every reason for which a row has none."""
    columns = ["caption", "is_duplicate", "source_reason", "image_row"]
    parts = [pl.read_parquet(split.folder / f"{shard}.parquet", columns=columns) for shard in sorted(split.rows)]
    rows = pl.concat(parts)
    where = {True: "in KEY.txt beside them", False: f"in column {pool.columns.get('caption')}"}[
        "image" not in pool.columns
    ]
    if split.facts.get("captions_in_lists"):
        where += " (lists: the first of each)"
    captions = rows.filter(pl.col("caption").fill_null("").str.strip_chars() != "").height
    images = rows.filter(pl.col("source_reason").is_null() | pl.col("source_reason").str.contains("txt")).height
    inside = int(rows["image_row"].is_not_null().sum())
    in_files = f" ({inside} in Parquet, {images - inside} in files)" if inside else ""
    sentence = f"Understood: {rows.height} rows, {images} images{in_files}, {captions} captions {where}"
    reasons = (
        rows["source_reason"]
        .drop_nulls()
        .value_counts(sort=True)
        .sort("count", "source_reason", descending=[True, False])
    )
    listed = ", ".join(f"{reason} {count}" for reason, count in reasons.iter_rows())
    notes = [f"rows that fail: {listed}"] if listed else []
    duplicates = int(rows["is_duplicate"].sum())
    notes += [f"rows that repeat an earlier one: {duplicates}"] if duplicates else []
    unlisted = split.facts.get("unlisted_images", 0)
    notes += [f"images of the folder that no row names, left out: {unlisted}"] if unlisted else []
    return "; ".join([sentence, *notes]) + "."


def known_scores(pool: Pool) -> list[str]:
    """Columns of a pool's table that hold CLIP cosines by their name, and that the pool does not take yet."""
    if pool.kind not in ("url_table", "image_table") or not pool.columns or pool.options.given_signals:
        return []
    tables = image_tables.tables_in(Path(pool.source))
    names = image_tables.first_row(tables[0], pool.text_format).columns
    return [name for name in CLIP_COLUMNS if name in names]
