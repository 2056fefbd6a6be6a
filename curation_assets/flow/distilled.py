"""distilled: fusion weights from rated captions, and the student that imitates the fused teachers (ICC §4.3–4.4)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.standardised import TEACHERS
from curation_assets.numeric.fusion import FusionWeights, fit_logistic_fusion, fuse


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage; none where the pool distils no student of its own."""
    if not ctx.distils:
        return
    yield Table(
        name="distilled/fusion_weights",
        grain="pool",
        inputs=("standardised/labelled_scores",),
        version="1",
        compute=_fusion_weights,
        config=lambda ctx, shard: {"ties": ctx.option("ties", "drop")},
        description=(
            "One row: weights a, b and intercept c of score = σ(a·VBA + b·SBA + c), fitted on captions rated above "
            "against below the median rating."
        ),
    )
    yield Table(
        name="distilled/targets",
        grain="shard",
        inputs=("standardised/teacher_scores", "distilled/fusion_weights"),
        version="1",
        compute=_targets,
        continues="teachers/distillation_sample",
        description="One row per distillation sample: the fused teacher score in (0, 1) that the student learns.",
    )
    yield Table(
        name="distilled/icc_student",
        grain="pool",
        inputs=("distilled/targets",),
        version="1",
        compute_folder=_train_student,
        roles=("sentence_encoder",),
        config=lambda ctx, shard: {"kind": ctx.option("student_kind", "minilm_ridge"), "seed": _seed(ctx)},
        description="The ICC student: safetensors and a card. Regresses the fused target on the caption alone.",
        kinds=("torch", "safetensors"),
    )


def _seed(ctx: PoolContext) -> int:
    return int(ctx.option("student_seed", 0))


def _matrix(frame: pl.DataFrame) -> np.ndarray:
    return frame.select(pl.col(teacher).cast(pl.Float64).fill_null(float("nan")) for teacher in TEACHERS).to_numpy()


def _fusion_weights(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    labelled = ctx.store.read("standardised/labelled_scores")
    weights = fit_logistic_fusion(
        _matrix(labelled), labelled["rating"].to_numpy(), ties=ctx.option("ties", "drop"), names=TEACHERS
    )
    return pl.DataFrame([weights.to_dict()])


def read_weights(ctx: PoolContext) -> FusionWeights:
    """The persisted fusion weights."""
    return FusionWeights.from_dict(ctx.store.read("distilled/fusion_weights").row(0, named=True))


def _targets(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    scores = ctx.store.read("standardised/teacher_scores", shard)
    target = pl.Series("value", fuse(_matrix(scores), read_weights(ctx))).fill_nan(None)
    return scores.select("sample_id", "caption").with_columns(
        target, pl.when(target.is_null()).then(pl.lit("no_teacher_score")).alias("reason")
    )


def _train_student(ctx: PoolContext, folder: Path) -> None:
    from curation_assets.students import train_student  # torch waits until a student is trained

    targets = ctx.store.scan("distilled/targets").filter(pl.col("value").is_not_null()).sort("sample_id").collect()
    with ctx.progress.task("distil the ICC student", 1) as advance:
        train_student(
            targets["caption"].to_list(),
            targets["value"].to_numpy(),
            folder,
            kind=ctx.option("student_kind", "minilm_ridge"),
            sentence_encoder=ctx.engines(["sentence_encoder"])["sentence_encoder"],
            seed=_seed(ctx),
        )
        advance(1)
