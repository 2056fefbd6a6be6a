"""Reference images of a pool: a folder, a tar, embeddings, another pool, or planted scenes; and their embeddings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.core.table_names import SAMPLES, TARGET_IMAGES
from curation_assets.flow.context import PoolContext
from curation_assets.sources.declaration import list_pools
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.arrays import load_npy
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import ImageRejected, decode_image, tar_index

PLANTED_REFERENCES, PLANTED_SEED = 400, 977  # of a world pool: clean scenes of a stream of their own
IMAGES_AT_ONCE = 256


def image_set_fingerprint(ctx: PoolContext, reader: str) -> Any:
    """What the option `reference_images` holds now, for a manifest; None for planted scenes. Raises as `_source`."""
    source = _source(ctx, reader)
    if isinstance(source, PoolContext):
        versions = source.store.input_versions(TARGET_IMAGES, [(SAMPLES, None)])
        return [[source.pool.name, version.partition, version.content_sha256] for version in versions]
    return None if source is None else [[file.name, file] for file in _files(source)]


def image_set_embeddings(ctx: PoolContext, reader: str, encoder: Any) -> np.ndarray:
    """(R, D) float32 by `encoder`. Images that cannot be decoded are left out; none at all is a ValueError."""
    source = _source(ctx, reader)
    if source is None:
        from curation_assets.world.pool import plant_evaluation_scenes

        return encoder.embed_images([scene for scene, _ in plant_evaluation_scenes(PLANTED_REFERENCES, PLANTED_SEED)])
    if isinstance(source, Path) and source.suffix == ".npy":
        return load_npy(source)
    images = _images_of_pool(source) if isinstance(source, PoolContext) else _images_of_files(source)
    parts, batch = [], []
    for image in images:
        batch.append(image)
        if len(batch) == IMAGES_AT_ONCE:
            parts.append(encoder.embed_images(batch))
            batch = []
    if batch:
        parts.append(encoder.embed_images(batch))
    if not parts:
        name = source.pool.name if isinstance(source, PoolContext) else source
        raise ValueError(f"{name}: has no image that can be decoded, so there is no reference")
    return np.concatenate(parts)


def _source(ctx: PoolContext, reader: str) -> Path | PoolContext | None:
    """A path, else the pool of that name; None: planted scenes. Raises ValueError where none of them is there."""
    given = SignalsOptions.of(ctx).reference_images
    if given is None:
        if ctx.pool.is_planted:
            return None
        raise ValueError(
            f"pool {ctx.pool.name!r} runs {reader} and names no reference images; set its option reference_images "
            "to a folder of images or tars, a tar, an .npy of embeddings (R, D) by the same encoder, or a pool"
        )
    path = Path(str(given)).expanduser()
    if path.exists():
        return path
    if str(given) == ctx.pool.name:
        raise ValueError(f"reference_images: {given!r} is this pool itself; name another, or a file or folder")
    if str(given) not in list_pools(ctx.settings):
        raise ValueError(f"reference_images: no file, folder or pool {given!r}")
    other = PoolContext.open(ctx.settings, str(given))
    if not other.store.partitions(SAMPLES):
        raise ValueError(f"reference_images: pool {given!r} has no samples yet; `curate run {given}` first")
    return other


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in (*IMAGE_SUFFIXES, ".tar"))


def _images_of_pool(other: PoolContext) -> Iterator[Image.Image]:
    """Images of the samples that raw keeps there, each file once."""
    load = other.image_loader()
    columns = ["sample_id", "tar", "member", "image_sha256", "status"]
    rows = other.store.scan(SAMPLES).select(columns).filter(pl.col("status") == "kept").collect()
    for row in rows.drop_nulls("image_sha256").unique("image_sha256").sort("sample_id").iter_rows(named=True):
        try:
            yield load(row)
        except ImageRejected:
            continue


def _images_of_files(path: Path) -> Iterator[Image.Image]:
    for file in _files(path):
        if file.suffix != ".tar":
            parts: Iterator[bytes] = iter([file.read_bytes()])
        else:
            index = tar_index(file)
            names = [name for name in index.members if Path(name).suffix.lower() in IMAGE_SUFFIXES]
            parts = map(index.read, names)
        while True:
            try:
                yield decode_image(next(parts))
            except StopIteration:
                break
            except ImageRejected:
                continue
