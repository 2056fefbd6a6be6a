"""signals/image_clusters: k-means over the pool's images, and how many reference images each cluster holds."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.methods.datacomp_caption import datacomp_caption
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid, reference_counts
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.stages.signals.image_sets import (
    PLANTED_REFERENCES,
    PLANTED_SEED,
    image_set_embeddings,
    image_set_fingerprint,
)

TABLE = "signals/image_clusters"
IMAGES_PER_CLUSTER = 128  # of the pool, where its options set no number of clusters: 12.8 M images, 100,000 clusters
MAX_FITTED = 1_000_000  # images; a larger pool is sampled by hash of the sample_id


def image_clusters(ctx: PoolContext) -> Iterator[Table]:
    """The table, in pools that run a method which reads it."""
    needed = {file.table for method in ctx.methods("signals") for file in method.file_settings.values()}
    if TABLE in needed:
        yield Table(
            name=TABLE,
            grain="pool",
            inputs=("raw/samples", "signals/image_embedding"),
            version="1",
            compute=_clusters,
            roles=("image_text_encoder", "language_identifier"),
            config=lambda ctx, shard: {
                "clusters": ctx.options.image_clusters,
                "reference": image_set_fingerprint(ctx, "image_based"),
                "planted": [PLANTED_REFERENCES, PLANTED_SEED],
            },
            description=(
                "One row per cluster of the pool's images (k-means over embeddings, as DataComp has it): its centroid, "
                "how many images of the pool and how many reference images are nearest to it."
            ),
            kinds=("scikit-learn",),
        )


def _clusters(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    engines = ctx.engines(["image_text_encoder", "language_identifier"])
    samples = ctx.store.scan("raw/samples").select("shard", "source_row", "sample_id", "caption", "status").collect()
    made = ctx.store.scan("signals/image_embedding").select("shard", "source_row", "image_embedding").collect()
    kept = samples.filter(pl.col("status") == "kept").join(made, on=["shard", "source_row"], how="inner")
    kept = kept.drop_nulls("image_embedding").unique("sample_id").sort("sample_id")
    if kept.is_empty():
        raise ValueError(f"pool {ctx.pool.name!r} has no image embeddings, so there is nothing to cluster")
    embeddings = np.array(kept["image_embedding"].to_list(), dtype=np.float32)  # (N, D)
    passing = datacomp_caption(kept["caption"].to_list(), engines["language_identifier"], "image_based").value == 1
    fitted = embeddings[passing] if passing.any() else embeddings
    if len(fitted) > MAX_FITTED:
        ids = kept.filter(pl.Series(passing if passing.any() else np.ones(len(passing), bool)))["sample_id"].to_list()
        drawn = np.argsort([unit_interval_of(sample_id, "image_clusters") for sample_id in ids])[:MAX_FITTED]
        fitted = fitted[np.sort(drawn)]
    count = ctx.options.image_clusters or max(1, round(len(fitted) / IMAGES_PER_CLUSTER))
    centroids = fit_centroids(fitted, count)
    reference = image_set_embeddings(ctx, "image_based", engines["image_text_encoder"])
    return pl.DataFrame(
        {
            "cluster": np.arange(len(centroids)),
            "image_count": np.bincount(nearest_centroid(embeddings, centroids), minlength=len(centroids)),
            "reference_count": reference_counts(reference, centroids),
            "centroid": pl.Series(centroids.tolist(), dtype=pl.List(pl.Float32)),
        }
    )
