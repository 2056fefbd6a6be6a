"""The report's section on benchmarks: how many rows are in them, and near ones side by side, for a person to judge."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from PIL import Image

from curation_assets.core.table_names import BENCHMARKS, CONTAMINATION, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.outputs.report import image_texts
from curation_assets.outputs.thumbnails import thumbnail_uri
from curation_assets.scoring.benchmark_files import benchmark_paths, image_of_item
from curation_assets.sources.shards import hash_list_of
from curation_assets.stores.images import ImageRejected, decode_image

MAX_PAIRS = 12
THUMBNAIL_PX = 160


def contamination_section(ctx: PoolContext) -> dict[str, Any] | None:
    """Counts per benchmark, and the nearest of the rows that are near to one and yet kept; None where none is named.

    A row that raw did not keep (quarantined, taken down) is near to nothing; an image of a benchmark that the home's
    denylist or the pool's hash lists know is not shown.
    """
    if not FlowOptions.of(ctx).decontaminate or ctx.store.manifest(BENCHMARKS) is None:
        return None
    found = ctx.store.scan(CONTAMINATION).filter(pl.col("benchmark").is_not_null()).collect()
    items = ctx.store.read(BENCHMARKS).group_by("benchmark", "benchmark_sha256").len("items").sort("benchmark")
    counted = found.group_by("benchmark").agg(
        dropped=pl.col("drop_reason").count(), near=pl.col("drop_reason").null_count()
    )
    near = found.filter(pl.col("drop_reason").is_null()).sort(
        "method", "distance", "sample_id", descending=[True, False, False]
    )
    shown = near.head(MAX_PAIRS).select("shard", "source_row", "benchmark", "item", "method", "distance")
    columns = ["shard", "source_row", "sample_id", "caption", "tar", "member", "image_sha256", "status"]
    samples = ctx.store.scan(SAMPLES).select(columns).filter(pl.col("status") == "kept").collect()
    pairs = shown.join(samples, on=["shard", "source_row"], how="inner", maintain_order="left").to_dicts()
    load, load_item = ctx.image_loader(few=True), _items_loader(ctx)
    return {
        "benchmarks": items.join(counted, on="benchmark", how="left").fill_null(0).to_dicts(),
        "near": near.height,
        "pairs": [
            {
                "own": thumbnail_uri(load, row, THUMBNAIL_PX)[0],
                "text": image_texts.caption_text(row["caption"]),
                "caption": image_texts.clamped(row["caption"]),
                "other": thumbnail_uri(load_item, row, THUMBNAIL_PX)[0],
                "item": f"{row['benchmark']}: {row['item']}",
                "note": f"{row['distance']:.0f} bits"
                if row["method"] == "pdq"
                else f"cosine {1 - row['distance']:.2f}",
            }
            for row in pairs
        ],
    }


def _items_loader(ctx: PoolContext) -> Callable[[Mapping[str, Any]], Image.Image]:
    """A function from a pair's benchmark and item to the item's image. It raises ImageRejected where it must not be
    shown, is no image, or is not there any more."""
    denylist, listed = ctx.denylist, hash_list_of(ctx.pool)
    paths: dict[str, Path] = benchmark_paths(FlowOptions.of(ctx).decontaminate)

    def load(row: Mapping[str, Any]) -> Image.Image:
        path = paths.get(row["benchmark"])
        data = None if path is None else image_of_item(path, row["item"])
        if data is None or denylist.has("sha256", hashlib.sha256(data).hexdigest()) or listed.matches(data):
            raise ImageRejected("not_shown", f"{row['item']} of {row['benchmark']} is no image to show")
        return decode_image(data)

    return load
