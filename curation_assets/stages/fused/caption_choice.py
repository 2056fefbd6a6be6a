"""fused/chosen_caption: the caption to train on, the sample's own or a generated one (docs/decisions/0043)."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.table_names import CHOSEN_CAPTION, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Fit, Needs, Shown, Table
from curation_assets.numeric.caption_choice import RAW, best_caption, caption_score
from curation_assets.numeric.spread import spread
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.stages.signals.options import CaptionChoice, SignalsOptions

CUT = f"{CHOSEN_CAPTION}_cut"
CAPTIONS_AT_ONCE = 256
#: Table of signals → column that is read of it.
READ = {"clip_score": "value", "generated_captions": "generated_captions", "image_embedding": "image_embedding"}


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The cut and the choice, in pools whose option `caption_choice` is set."""
    settings = SignalsOptions.of(ctx).caption_choice
    if settings is None:
        return
    if not ctx.pool.has_images:
        raise ValueError(
            f"pool {ctx.pool.name!r}: option caption_choice compares captions with images, and the pool has captions "
            "only; take it out"
        )
    roles = ("image_text_encoder", "student") if settings.icc_weight else ("image_text_encoder",)
    yield Table(
        name=CUT,
        grain="pool",
        inputs=("signals/clip_score",),
        version="1",
        compute=lambda ctx: _cut(ctx, settings),
        config=lambda ctx: {"raw_share": settings.raw_share},
        fit=Fit(),
        description="One row: the cosine from which a sample's own caption stays, frozen.",
    )
    yield Table(
        name=CHOSEN_CAPTION,
        grain="shard",
        inputs=(SAMPLES, *(f"signals/{name}" for name in READ), CUT, *ctx.distilled(roles)),
        version="1",
        description=(
            "One row per row of raw/samples: chosen_caption, caption_source (raw, or generated and its number), and "
            "quality, the score by which it was chosen: (1 − icc_weight) · cosine + icc_weight · ICC."
        ),
        compute=lambda ctx, shard: _chosen(ctx, shard, settings, roles),
        needs=Needs(roles=roles, core=True),
        config=lambda ctx: asdict(settings),
        continues=SAMPLES,
        shown=Shown(kinds=("torch", "polars")),
    )


def _cut(ctx: PoolContext, settings: CaptionChoice) -> pl.DataFrame:
    def values() -> Iterator[np.ndarray]:
        for shard in ctx.store.partitions("signals/clip_score"):
            of_shard = ctx.store.read("signals/clip_score", shard, ["value"])["value"]
            yield of_shard.drop_nulls().drop_nans().to_numpy()

    count = sum(map(len, values()))
    if not count:
        raise ValueError(f"pool {ctx.pool.name!r}: no sample has a clip_score, so captions cannot be compared")
    _, (threshold,) = spread(values, count, [1 - settings.raw_share])
    return pl.DataFrame({"threshold": [threshold], "valued_count": [count]})


def _chosen(ctx: PoolContext, shard: str, settings: CaptionChoice, roles: tuple[str, ...]) -> pl.DataFrame:
    rows = _rows(ctx, shard)
    judged = rows.filter(pl.col("why").is_null())
    stays = judged["value"].to_numpy() >= ctx.store.read(CUT)["threshold"][0]
    own, every = judged["caption"].to_list(), judged["generated_captions"].to_list()
    generated: list[list[str]] = [[] if kept else list(texts) for kept, texts in zip(stays, every, strict=True)]
    flat = [text for texts in generated for text in texts]
    bounds = np.concatenate([[0], np.cumsum([len(texts) for texts in generated])]).astype(np.int64)
    engines, weight = ctx.engines(roles), float(settings.icc_weight)

    def concreteness(texts: list[str]) -> np.ndarray:
        return engines["student"].score_captions(texts) if weight and texts else np.zeros(len(texts))

    images = np.array(judged["image_embedding"].to_list(), dtype=np.float32).reshape(judged.height, -1)
    cosine = _cosines(engines["image_text_encoder"], flat, images[np.repeat(np.arange(judged.height), np.diff(bounds))])
    raw = caption_score(judged["value"].to_numpy(), concreteness(own), weight)
    scores = caption_score(cosine, concreteness(flat), weight)
    of_row = [scores[start:end] for start, end in pairwise(bounds)]
    numbers = list(enumerate(best_caption(stays, raw, of_row).tolist()))
    made = pl.DataFrame(
        {
            "source_row": judged["source_row"],
            "chosen_caption": [own[row] if one == RAW else generated[row][one] for row, one in numbers],
            "caption_source": ["raw" if one == RAW else f"generated {one}" for _, one in numbers],
            "quality": [raw[row] if one == RAW else of_row[row][one] for row, one in numbers],
        },
        schema_overrides={"chosen_caption": pl.String, "caption_source": pl.String, "quality": pl.Float64},
    )
    key = rows.select("sample_id", pl.lit(shard).alias("shard"), "source_row", pl.col("why").alias("reason"))
    return key.join(made, on="source_row", how="left", maintain_order="left")


def _rows(ctx: PoolContext, shard: str) -> pl.DataFrame:
    """Rows of a shard with cosine, generated captions and embedding, and `why` one of them is missing."""
    rows = ctx.store.read(SAMPLES, shard, ["sample_id", "source_row", "caption", "status", "reason"])
    why = [upstream_reason()]
    for table, column in READ.items():
        made = ctx.store.read(f"signals/{table}", shard, ["source_row", column, "reason"])
        rows = rows.join(made.rename({"reason": f"{table}:reason"}), on="source_row", how="left", maintain_order="left")
        named = pl.format("{}:{}", pl.lit(table), pl.col(f"{table}:reason").fill_null("no_row"))
        why.append(pl.when(pl.col(column).is_null()).then(named))
    return rows.with_columns(pl.coalesce(why).alias("why"))


def _cosines(encoder: Any, texts: list[str], images: np.ndarray) -> np.ndarray:
    """(M,) texts with the unit vectors of their images (M, D) → (M,)."""
    parts = [np.zeros(0)]
    for start in range(0, len(texts), CAPTIONS_AT_ONCE):
        vectors = encoder.embed_texts(texts[start : start + CAPTIONS_AT_ONCE])
        parts.append(np.einsum("nd,nd->n", vectors, images[start : start + CAPTIONS_AT_ONCE], dtype=np.float64))
    return np.concatenate(parts)
