"""distilled: fusion weights from rated captions, and the student that imitates the fused teachers (ICC §4.3–4.4).

Option `fuse_on`: 'teacher' fits the weights on the teachers' own scores. 'student' follows the paper's appendix A.2:
one student per teacher first, the weights on their outputs, then the final student on the outputs' fusion.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from curation_assets.core.settings import Profile
from curation_assets.core.table_names import (
    DISTILLATION_SAMPLE,
    FUSION_WEIGHTS,
    LABELLED_STUDENT_SCORES,
    STUDENT_SCORES,
    TARGETS,
    TEACHER_SCORES,
)
from curation_assets.core.validation import content_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import labelled_table, read_weights, teacher_names
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Fit, Folder, Needs, Shown, Table
from curation_assets.methods import get_method
from curation_assets.numeric.fusion import FusionWeights, fit_logistic_fusion, fuse
from curation_assets.stages.distilled.students import score_with_students
from curation_assets.stages.standardised.tables import fusion_options
from curation_assets.stages.teachers.tables import labels_config, read_labels
from curation_assets.training.options import EMBEDDING_KINDS, TrainingOptions

#: Fusion weights for pools of real captions that nobody rated, by benchmarks/icc_real_captions.py.
SHIPPED = Path(__file__).parent / "shipped_fusion.yaml"
NOBODYS = "300 captions of LAION that people rated; they ship as numbers (shipped_fusion.yaml)."


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage; none where the pool distils no student of its own."""
    if not ctx.distils:
        return
    on_students = FlowOptions.of(ctx).fuse_on == "student"
    if on_students:
        yield from _students_of_teachers(ctx)
    yield Table(
        name=FUSION_WEIGHTS,
        grain="pool",
        inputs=() if ctx.ratings is None else (labelled_table(ctx),),
        version="2",
        compute=_fusion_weights,
        config=lambda ctx: fusion_options(ctx) if ctx.ratings else {"shipped_sha256": SHIPPED},
        fit=Fit(),
        description=(
            "One row: a weight per teacher and the intercept of score = σ(Σ weight · teacher + intercept), fitted on "
            + (f"captions with a {ctx.ratings} rating above against below the median." if ctx.ratings else NOBODYS)
        ),
    )
    yield Table(
        name=TARGETS,
        grain="shard",
        inputs=(_scores_table(ctx), FUSION_WEIGHTS),
        version="1",
        compute=_targets,
        continues=DISTILLATION_SAMPLE,
        description="One row per distillation sample: the fused teacher score in (0, 1) that the student learns.",
    )
    yield _student_table(
        ctx,
        "icc_student",
        TARGETS,
        "value",
        "The ICC student: safetensors and a card. Regresses the fused target on the caption alone.",
    )


def _scores_table(ctx: PoolContext) -> str:
    return TEACHER_SCORES if FlowOptions.of(ctx).fuse_on == "teacher" else STUDENT_SCORES


def _students_of_teachers(ctx: PoolContext) -> Iterator[Table]:
    """Appendix A.2's first step: one student per teacher, and their scores."""
    students = tuple(f"distilled/student_{teacher}" for teacher in teacher_names(ctx))
    for teacher, name in zip(teacher_names(ctx), students, strict=True):
        yield _student_table(
            ctx,
            name.removeprefix("distilled/"),
            TEACHER_SCORES,
            teacher,
            f"A student of the teacher {teacher} alone: regresses its standardised score on the caption.",
        )
    roles = _student_roles(ctx)
    yield Table(
        name=STUDENT_SCORES,
        grain="shard",
        inputs=(TEACHER_SCORES, *students),
        version="1",
        description="One row per distillation sample: its caption's score by each teacher's student (not clipped).",
        compute=_student_scores,
        needs=Needs(roles=roles, core=True),
        continues=DISTILLATION_SAMPLE,
        shown=Shown(kinds=("torch", "polars")),
    )
    yield Table(
        name=LABELLED_STUDENT_SCORES,
        grain="pool",
        inputs=students,
        version="1",
        description="One row per rated caption: its score by each teacher's student.",
        compute=_labelled_student_scores,
        needs=Needs(roles=roles, core=True),
        config=labels_config,
        shown=Shown(kinds=("torch", "polars")),
    )


def _student_roles(ctx: PoolContext) -> tuple[str, ...]:
    return ("sentence_encoder",) if TrainingOptions.of(ctx).student_kind in EMBEDDING_KINDS else ()


def _student_table(ctx: PoolContext, name: str, source: str, column: str, description: str) -> Table:
    def compute(ctx: PoolContext, folder: Path) -> None:
        _train_student(ctx, folder, source, column, name)

    def config(ctx: PoolContext) -> dict[str, Any]:
        options = TrainingOptions.of(ctx)
        fit = content_of(options.student_fit)
        return {"kind": options.student_kind, "seed": options.student_seed, **({"fit": fit} if fit else {})}

    return Table(
        name=f"distilled/{name}",
        grain="pool",
        inputs=(source,),
        version="1",
        description=description,
        compute=Folder(compute),
        needs=Needs(roles=_student_roles(ctx), core=True),
        config=config,
        fit=Fit(),
        shown=Shown(kinds=("torch", "safetensors")),
    )


def _matrix(ctx: PoolContext, frame: pl.DataFrame) -> np.ndarray:
    """(N, K) scores of the K teachers, NaN where there is none."""
    columns = (pl.col(teacher).cast(pl.Float64).fill_null(float("nan")) for teacher in teacher_names(ctx))
    return frame.select(columns).to_numpy()


def _fusion_weights(ctx: PoolContext) -> pl.DataFrame:
    if ctx.ratings is None:
        return pl.DataFrame([shipped_weights(teacher_names(ctx), ctx.profile).to_dict()])
    labelled = ctx.store.read(labelled_table(ctx))
    weights = fit_logistic_fusion(
        _matrix(ctx, labelled), labelled["rating"].to_numpy(), names=teacher_names(ctx), **fusion_options(ctx)
    )
    return pl.DataFrame([weights.to_dict()])


def shipped_weights(teachers: Sequence[str], profile: Profile) -> FusionWeights:
    """The weights that ship for these teachers with these models. Raises ValueError where none do."""
    models = {role: profile.roles.get(role) for teacher in teachers for role in get_method(teacher).roles}
    for shipped in yaml.safe_load(SHIPPED.read_text(encoding="utf-8")):
        if tuple(shipped["weights"]) == tuple(teachers) and shipped["models"] == models:
            return FusionWeights(
                weights=tuple(shipped["weights"].values()),
                names=tuple(teachers),
                is_regularised=False,
                **shipped["fit"],
            )
    raise ValueError(
        f"no fusion weights ship for the teachers {', '.join(teachers)} with {models}; rate some captions "
        "(`curate annotate sample`, `curate annotate rate`) and name the file in the pool's option labels, or set its "
        "profile to photos"
    )


def has_shipped_weights(ctx: PoolContext) -> bool:
    """Whether weights ship for the pool's teachers and models."""
    try:
        shipped_weights(teacher_names(ctx), ctx.profile)
    except ValueError:
        return False
    return True


def _targets(ctx: PoolContext, shard: str) -> pl.DataFrame:
    scores = ctx.store.read(_scores_table(ctx), shard)
    target = pl.Series("value", fuse(_matrix(ctx, scores), read_weights(ctx))).fill_nan(None)
    return scores.select("sample_id", "caption").with_columns(
        target, pl.when(target.is_null()).then(pl.lit("no_teacher_score")).alias("reason")
    )


def _student_scores(ctx: PoolContext, shard: str) -> pl.DataFrame:
    sample = ctx.store.read(TEACHER_SCORES, shard).select("sample_id", "caption")
    return sample.with_columns(score_with_students(ctx, sample["caption"]))


def _labelled_student_scores(ctx: PoolContext) -> pl.DataFrame:
    labels = read_labels(ctx).select("caption", "rating")
    return labels.with_columns(score_with_students(ctx, labels["caption"]))


def _train_student(ctx: PoolContext, folder: Path, source: str, column: str, name: str) -> None:
    options = TrainingOptions.of(ctx)
    from curation_assets.engines import resolve_device
    from curation_assets.training.students import train_student  # torch waits until a student is trained

    scored = ctx.store.scan(source).filter(pl.col(column).is_not_null()).sort("sample_id").collect()
    with ctx.progress.task(f"distil {name}", 1) as advance:
        roles = ctx.engines(_student_roles(ctx))
        train_student(
            scored["caption"].to_list(),
            scored[column].to_numpy(),
            folder,
            kind=options.student_kind,
            sentence_encoder=roles.get("sentence_encoder"),
            seed=options.student_seed,
            fit=options.student_fit,
            device=resolve_device(ctx.profile.device),
        )
        advance(1)
