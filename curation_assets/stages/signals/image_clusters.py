"""signals/image_clusters: k-means over the pool's images, and how many reference images each cluster holds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.table_names import IMAGE_CLUSTERS, IMAGE_EMBEDDING, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Needs, Shown, Table
from curation_assets.methods.datacomp_caption import datacomp_caption
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid, reference_counts
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.scoring.derived import vectors_of
from curation_assets.stages.signals.image_sets import (
    PLANTED_REFERENCES,
    PLANTED_SEED,
    image_set_embeddings,
    image_set_fingerprint,
)
from curation_assets.stages.signals.options import SignalsOptions

IMAGES_PER_CLUSTER = 128  # of the pool, where its options set no number of clusters: 12.8 M images, 100,000 clusters
MAX_FITTED = 1_000_000  # images; a larger pool is sampled by hash of the sample_id


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The table, in pools that run a method which reads it."""
    needed = {file.table for method in ctx.methods("signals") for file in method.file_settings.values()}
    if IMAGE_CLUSTERS in needed:
        yield Table(
            name=IMAGE_CLUSTERS,
            grain="pool",
            inputs=(SAMPLES, IMAGE_EMBEDDING),
            version="1",
            description=(
                "One row per cluster of the pool's images (k-means over embeddings, as DataComp has it): its "
                "centroid, how many images of the pool and how many reference images are nearest to it."
            ),
            compute=_clusters,
            needs=Needs(roles=("image_text_encoder", "language_identifier")),
            config=lambda ctx: {
                "clusters": SignalsOptions.of(ctx).image_clusters,
                "reference": image_set_fingerprint(ctx, "image_based"),
                "planted": [PLANTED_REFERENCES, PLANTED_SEED],
            },
            shown=Shown(kinds=("scikit-learn",)),
        )


def _clusters(ctx: PoolContext) -> pl.DataFrame:
    """Embeddings come into memory a shard at a time, and those that are fitted: 4 GB of 1,000,000 by 1,024 numbers."""
    engines = ctx.engines(["image_text_encoder", "language_identifier"])
    images = _images(ctx, engines["language_identifier"])
    if images.is_empty():
        raise ValueError(f"pool {ctx.pool.name!r} has no image embeddings, so there is nothing to cluster")
    fitted = _fitted(images)
    count = SignalsOptions.of(ctx).image_clusters or max(1, round(fitted.height / IMAGES_PER_CLUSTER))
    vectors = np.zeros((0, 0), np.float32)
    for chosen, part in _vectors(ctx, fitted.with_row_index("position")):
        if not vectors.size:
            vectors = np.empty((fitted.height, part.shape[1]), np.float32)  # (F, D)
        vectors[chosen["position"].to_numpy()] = part
    centroids = fit_centroids(vectors, count)
    del vectors
    image_count = np.zeros(len(centroids), np.int64)
    for _, part in _vectors(ctx, images):
        image_count += np.bincount(nearest_centroid(part, centroids), minlength=len(centroids))
    reference = image_set_embeddings(ctx, "image_based", engines["image_text_encoder"])
    return pl.DataFrame(
        {
            "cluster": np.arange(len(centroids)),
            "image_count": image_count,
            "reference_count": reference_counts(reference, centroids),
            "centroid": pl.Series(centroids).arr.to_list(),
        }
    )


def _images(ctx: PoolContext, identifier: Any) -> pl.DataFrame:
    """The pool's embedded images, sorted by sample_id, one row each: shard, source_row, sample_id, passes (the caption
    rules of image-based filtering), draw (in [0, 1), by hash)."""
    parts = []
    for shard in ctx.store.partitions(IMAGE_EMBEDDING):
        columns = ["source_row", "sample_id", "caption", "status"]
        samples = ctx.store.read(SAMPLES, shard, columns).filter(pl.col("status") == "kept")
        made = ctx.store.read(IMAGE_EMBEDDING, shard, ["source_row", "image_embedding"])
        has_vector = made.filter(pl.col("image_embedding").is_not_null()).select("source_row")
        kept = samples.join(has_vector, on="source_row", how="semi", maintain_order="left").select(
            pl.lit(shard).cast(pl.Categorical).alias("shard"), "source_row", "sample_id", "caption"
        )
        passes = datacomp_caption(kept["caption"].to_list(), identifier, "image_based").value == 1
        draw = [unit_interval_of(sample_id, "image_clusters") for sample_id in kept["sample_id"]]
        rows = kept.drop("caption").with_columns(pl.Series("passes", passes), pl.Series("draw", draw, pl.Float64))
        parts.append(rows)
    if not parts:
        return pl.DataFrame({"sample_id": []})
    images = pl.concat(parts).unique("sample_id", keep="first", maintain_order=True)
    return images.sort("sample_id")


def _fitted(images: pl.DataFrame) -> pl.DataFrame:
    """The images whose captions pass (all, where none does), of a large pool MAX_FITTED by hash; in order."""
    fitted = images.filter("passes") if images["passes"].any() else images
    if fitted.height <= MAX_FITTED:
        return fitted
    drawn = np.argsort(fitted["draw"].to_numpy())[:MAX_FITTED]
    return fitted[np.sort(drawn)]


def _vectors(ctx: PoolContext, images: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """The images of each shard, and their embeddings (n, D) float32."""
    for images_of_shard in images.partition_by("shard", maintain_order=True):
        shard = images_of_shard["shard"][0]
        made = ctx.store.read(IMAGE_EMBEDDING, shard, ["source_row", "image_embedding"])
        joined = images_of_shard.join(made, on="source_row", how="left", maintain_order="left")
        yield images_of_shard, vectors_of(joined["image_embedding"])
