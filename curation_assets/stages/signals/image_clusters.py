"""signals/image_clusters: k-means over the pool's images, and how many reference images each cluster holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.methods.datacomp_caption import datacomp_caption
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid, reference_counts
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.scoring.files import IMAGE_SUFFIXES
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.images import ImageRejected, decode_image, tar_index

TABLE = "signals/image_clusters"
IMAGES_PER_CLUSTER = 128  # of the pool, where its options set no number of clusters: 12.8 M images, 100,000 clusters
MAX_FITTED = 1_000_000  # images; a larger pool is sampled by hash of the sample_id
PLANTED_REFERENCES, PLANTED_SEED = 400, 977  # of a world pool: clean scenes of a stream of their own


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
                "reference": _reference_fingerprint(ctx),
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
    reference = _reference_embeddings(ctx, engines["image_text_encoder"])
    return pl.DataFrame(
        {
            "cluster": np.arange(len(centroids)),
            "image_count": np.bincount(nearest_centroid(embeddings, centroids), minlength=len(centroids)),
            "reference_count": reference_counts(reference, centroids),
            "centroid": pl.Series(centroids.tolist(), dtype=pl.List(pl.Float32)),
        }
    )


def _reference_path(ctx: PoolContext) -> Path | None:
    given = ctx.options.reference_images
    if given is None and ctx.pool.kind != "world":
        raise ValueError(
            f"pool {ctx.pool.name!r} runs image_based and names no reference images; set its option reference_images "
            "to a folder of images or tars, a tar, or an .npy of embeddings (R, D) by the same encoder"
        )
    path = None if given is None else Path(str(given)).expanduser()
    if path is not None and not path.exists():
        raise ValueError(f"reference_images: no file or folder {path}")
    return path


def _reference_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in (*IMAGE_SUFFIXES, ".tar"))


def _reference_fingerprint(ctx: PoolContext) -> Any:
    path = _reference_path(ctx)
    return None if path is None else [[file.name, file_sha256(file)] for file in _reference_files(path)]


def _reference_embeddings(ctx: PoolContext, encoder: Any) -> np.ndarray:
    """(R, D) float32. Images that cannot be decoded are left out; none at all is an error."""
    path = _reference_path(ctx)
    if path is None:
        from curation_assets.world.pool import plant_evaluation_scenes

        return encoder.embed_images([scene for scene, _ in plant_evaluation_scenes(PLANTED_REFERENCES, PLANTED_SEED)])
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    parts = []
    for file in _reference_files(path):
        images = list(_images_of(file))
        if images:
            parts.append(encoder.embed_images(images))
    if not parts:
        raise ValueError(f"{path}: has no image that can be decoded, so there is no reference")
    return np.concatenate(parts)


def _images_of(file: Path) -> Iterator[Image.Image]:
    if file.suffix != ".tar":
        images = [file.read_bytes()]
    else:
        index = tar_index(file)
        images = [index.read(name) for name in index.members if Path(name).suffix.lower() in IMAGE_SUFFIXES]
    for data in images:
        try:
            yield decode_image(data)
        except ImageRejected:
            continue
