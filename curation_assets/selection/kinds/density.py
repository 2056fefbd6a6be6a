"""Kind `density`: clusters keep the more samples the farther apart their images lie (density-based pruning)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Whole, checked, setting
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid
from curation_assets.numeric.density import cluster_quotas, spread_of_clusters
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.numeric.selection import share_count
from curation_assets.selection.kinds import Kind, embeddings_of, missing_reason, scored

Keep = Literal["hard", "easy", "random"]


@checked("density")
class KIND(Kind):
    """quality is how far a sample is inside its cluster's quota: a threshold of 0 keeps the quotas (formulas §15.9)."""

    fraction: Number = setting(gt=0, le=1, description="Share of the samples with an embedding that the quotas keep.")
    clusters: Whole = setting(default=500, ge=1, description="Of k-means; fewer in small pools: one per 20 images.")
    neighbours: Whole = setting(default=20, ge=1, description="Nearest centroids whose distance counts.")
    temperature: Number = setting(default=0.5, gt=0, description="τ of the softmax over clusters.")
    keep: Keep = setting(default="hard", description="Within a cluster: far from its centroid, near, or any.")
    seed: Whole = setting(default=0, ge=0, description="Of k-means, and of keep: random.")

    @property
    def columns(self) -> tuple[str, ...]:
        """Image embeddings."""
        return ("image_embedding",)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per cluster: centroid, members, distances, quota, and the smallest key that is inside it."""
        rows = pl.concat(list(shards)).unique("sample_id", keep="first").drop_nulls("image_embedding").sort("sample_id")
        if rows.is_empty():
            raise ValueError("no sample has an image embedding, so there is nothing to cluster")
        vectors = embeddings_of(rows)
        centroids = fit_centroids(vectors, min(self.clusters, max(1, len(vectors) // 20)), self.seed)
        cluster = nearest_centroid(vectors, centroids)
        counts = np.bincount(cluster, minlength=len(centroids))
        intra, inter = spread_of_clusters(vectors, cluster, centroids, self.neighbours)
        total = max(share_count(len(vectors), self.fraction), int((counts > 0).sum()))
        quotas = cluster_quotas(intra, inter, counts, total, float(self.temperature))
        keys = self._keys(rows["sample_id"], vectors, centroids, cluster)
        lows = np.full(len(centroids), np.inf)
        for number in np.flatnonzero(quotas):
            members = np.sort(keys[cluster == number])
            lows[number] = members[len(members) - quotas[number]]
        return pl.DataFrame(
            {
                "cluster": np.arange(len(centroids)),
                "count": counts,
                "quota": quotas,
                "d_intra": intra,
                "d_inter": inter,
                "low": lows,
                "centroid": pl.Series(centroids.tolist(), dtype=pl.List(pl.Float32)),
            }
        )

    def holds_any(self, fit: pl.DataFrame, scored: pl.DataFrame) -> bool:
        """The centroid of a cluster of one is that image's vector."""
        alone = fit.filter(pl.col("count") == 1)["cluster"]
        return scored.filter(pl.col("reason").is_null())["cluster"].is_in(alone.implode()).any()

    def _keys(self, ids: pl.Series, vectors: np.ndarray, centroids: np.ndarray, cluster: np.ndarray) -> np.ndarray:
        """(N,) the higher, the sooner kept within its cluster."""
        if self.keep == "random":
            return np.array([unit_interval_of(one, f"density:{self.seed}") for one in ids])
        apart = 1.0 - np.einsum("nd,nd->n", vectors, centroids[cluster], dtype=np.float64)
        return apart if self.keep == "hard" else -apart

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """Key less that of the last that its cluster keeps; the cluster."""
        reason = missing_reason(rows, ["image_embedding"])
        there = np.flatnonzero(reason.is_null().to_numpy())
        some = rows[there]
        quality, cluster_of = np.full(rows.height, np.nan), np.zeros(rows.height, dtype=np.int64)
        if len(there):
            vectors, centroids = embeddings_of(some), embeddings_of(fit, "centroid")
            cluster = nearest_centroid(vectors, centroids)
            keys = self._keys(some["sample_id"], vectors, centroids, cluster)
            quality[there], cluster_of[there] = keys - fit["low"].to_numpy()[cluster], cluster
        words = [
            f"cluster full: {number}, kept {quota:,} of {count:,}"
            for number, quota, count in fit.select("cluster", "quota", "count").iter_rows()
        ]
        return scored(quality, reason, [words[number] for number in cluster_of], cluster=cluster_of)
