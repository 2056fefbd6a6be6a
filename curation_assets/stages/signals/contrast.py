"""signals/contrast_pairs and signals/target_images: what negCLIPLoss, NormSim and VAS hold each sample against."""

from collections.abc import Collection, Iterator

import numpy as np
import polars as pl

from curation_assets.core.table_names import CONTRAST_PAIRS, IMAGE_EMBEDDING, SAMPLES, TARGET_IMAGES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Fit, Needs, Table
from curation_assets.methods.neg_clip_loss import draw_of
from curation_assets.selection.rows import looked_up
from curation_assets.sources.options import SourceOptions
from curation_assets.stages.signals.image_sets import (
    PLANTED_REFERENCES,
    PLANTED_SEED,
    image_set_embeddings,
    image_set_fingerprint,
)
from curation_assets.stages.signals.options import SignalsOptions

PAIRS, TARGETS = CONTRAST_PAIRS, TARGET_IMAGES
MANY_PAIRS, FEW_PAIRS = 32_768, 4_096  # the paper's batch; of a pool below LARGE_POOL samples
LARGE_POOL = 1_000_000  # samples: below, an eighth of the cost per sample counts for more than of the variance
CAPTIONS_AT_ONCE = 256


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Each of the two where a method that the pool runs reads it."""
    given = SourceOptions.of(ctx).given_signals
    needed = {
        file.table
        for method in ctx.methods("signals")
        for setting, file in method.file_settings.items()
        if method.name not in given and setting not in ctx.profile.methods.get(method.name, {})
    }
    if PAIRS in needed:
        yield Table(
            name=PAIRS,
            grain="pool",
            inputs=(SAMPLES, IMAGE_EMBEDDING),
            version="1",
            description=(
                "One row per pair that samples are contrasted with (negCLIPLoss), drawn by hash of the sample_id: "
                "its draw, and the unit vectors of image and caption as float32 bytes. Frozen: samples that come "
                "later change nothing until `curate refit POOL --fits`; drawn again without a sample that is taken "
                "down."
            ),
            compute=_pairs,
            needs=Needs(roles=("image_text_encoder",)),
            config=lambda ctx: {"pairs": SignalsOptions.of(ctx).contrast_pairs},
            fit=Fit(holds_any=_holds_any),
        )
    if TARGETS in needed:
        yield Table(
            name=TARGETS,
            grain="pool",
            inputs=(),
            version="1",
            description=(
                "One row per target image (option `reference_images`): its unit vector as float32 bytes, for "
                "NormSim and VAS."
            ),
            compute=_targets,
            needs=Needs(roles=("image_text_encoder",)),
            config=lambda ctx: {
                "reference": image_set_fingerprint(ctx, "norm_sim or vas"),
                "planted": [PLANTED_REFERENCES, PLANTED_SEED],
            },
        )


def _holds_any(ctx: PoolContext, sample_ids: Collection[str]) -> bool:
    """Whether one of the samples is among the stored pairs, which know their samples by draw."""
    draws = set(ctx.store.read(PAIRS, columns=["draw"])["draw"])
    return not draws.isdisjoint(map(draw_of, sample_ids))


def _first_by_lot(ctx: PoolContext) -> pl.DataFrame:
    """Shard, source_row, draw and caption of the samples with the smallest draws, which have caption and embedding."""
    wanted, samples, first = SignalsOptions.of(ctx).contrast_pairs, set[str](), pl.DataFrame()
    for shard in ctx.store.partitions(SAMPLES):
        kept = ctx.store.scan(SAMPLES, [shard]).filter(pl.col("caption").str.strip_chars() != "", status="kept")
        rows = kept.select("sample_id", "shard", "source_row", "caption").collect()
        if len(samples) < LARGE_POOL:
            samples.update(rows["sample_id"])
        made = ctx.store.scan(IMAGE_EMBEDDING, [shard]).drop_nulls("image_embedding").select("source_row").collect()
        rows = rows.join(made, on="source_row", how="semi", maintain_order="left")
        draws = pl.Series("draw", [draw_of(one) for one in rows["sample_id"]], dtype=pl.Float64)
        first = pl.concat([first, rows.with_columns(draws)], how="diagonal").unique("sample_id", keep="first")
        first = first.sort("draw").head(wanted or MANY_PAIRS)
    return first.head(wanted or (MANY_PAIRS if len(samples) >= LARGE_POOL else FEW_PAIRS))


def _pairs(ctx: PoolContext) -> pl.DataFrame:
    first = _first_by_lot(ctx)
    if first.is_empty():
        raise ValueError(f"pool {ctx.pool.name!r} has no sample with image and caption to contrast others with")
    pairs = looked_up(ctx.store, first, IMAGE_EMBEDDING, "image_embedding")
    encoder = ctx.engines(["image_text_encoder"])["image_text_encoder"]
    captions = pairs["caption"].to_list()
    vectors = np.concatenate(
        [
            encoder.embed_texts(captions[start : start + CAPTIONS_AT_ONCE])
            for start in range(0, len(captions), CAPTIONS_AT_ONCE)
        ]
    )
    images = np.array(pairs["image_embedding"].to_list(), dtype=np.float32)  # (R, D)
    return pl.DataFrame(
        [pairs["draw"], float_bytes("image_embedding", images), float_bytes("caption_embedding", vectors)]
    )


def _targets(ctx: PoolContext) -> pl.DataFrame:
    encoder = ctx.engines(["image_text_encoder"])["image_text_encoder"]
    vectors = image_set_embeddings(ctx, "norm_sim or vas", encoder)
    if vectors.ndim != 2 or not len(vectors):
        raise ValueError(f"reference_images: expected embeddings (R, D) with R ≥ 1, got {vectors.shape}")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise ValueError("reference_images: embeddings must be finite and not zero")
    return pl.DataFrame([float_bytes("image_embedding", vectors / lengths)])


def float_bytes(name: str, vectors: np.ndarray) -> pl.Series:
    """(N, D) → N cells of D little-endian float32: lists would be a Python object per number when read."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return pl.Series(name, [row.tobytes() for row in rows], dtype=pl.Binary)
