"""standardised: pool statistics per caption length, and teacher values brought to one scale (ICC §4.3).

Options of a pool, each a reading of the paper (docs/decisions/0007): `standardise_by` (length, global), `length_unit`
(words, characters), `min_group` (captions per group of lengths) and `mu_logit` (shift of the target distribution).
"""

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import polars as pl

from curation_assets.core.table_names import (
    DISTILLATION_SAMPLE,
    LABELLED_CAPTIONS,
    LABELLED_SCORES,
    LENGTH_DEPENDENCE,
    LENGTH_EVIDENCE,
    LENGTH_STATISTICS,
    TEACHER_SCORES,
)
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.flow.table import Fit, Shown, Table
from curation_assets.numeric.agreement import agreement
from curation_assets.numeric.fusion import held_out_fusion
from curation_assets.numeric.standardise import (
    Grouping,
    LengthStatistics,
    caption_length,
    fit_length_statistics,
    length_dependence,
    length_evidence,
    length_warning,
    standardise,
)
from curation_assets.selection.rows import floats
from curation_assets.stages.standardised.options import StandardisedOptions


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage; none where the pool distils no student of its own."""
    if not ctx.distils:
        return
    teachers = tuple(f"teachers/{name}" for name in teacher_names(ctx))
    yield Table(
        name=LENGTH_STATISTICS,
        grain="pool",
        inputs=teachers,
        version="1",
        compute=_length_statistics,
        config=_options,
        fit=Fit(),
        description=(
            "One row per teacher and group of caption lengths: mean and population sd of the logit similarity. "
            "Frozen: rows that come later change nothing until `curate refit POOL --fits`."
        ),
    )
    yield Table(
        name=LENGTH_DEPENDENCE,
        grain="pool",
        inputs=(*teachers, LENGTH_STATISTICS),
        version="1",
        description=(
            "One row per teacher, before and after: slope per unit of length and Spearman correlation with caption "
            "length, and a warning where similarity follows length so much that grouping may remove signal."
        ),
        compute=_length_dependence,
        config=_options,
        shown=Shown(warning_column="warning"),
    )
    yield Table(
        name=TEACHER_SCORES,
        grain="shard",
        inputs=(*teachers, LENGTH_STATISTICS),
        version="1",
        compute=_teacher_scores,
        config=_options,
        continues=DISTILLATION_SAMPLE,
        description="One row per distillation sample: both teachers' scores on the LN(0.5, 1) scale, in (0, 1).",
    )
    if ctx.ratings is not None:
        yield from _rated_tables(ctx, teachers)


def _rated_tables(ctx: PoolContext, teachers: tuple[str, ...]) -> Iterator[Table]:
    """What rests on rated captions."""
    yield Table(
        name=LENGTH_EVIDENCE,
        grain="pool",
        inputs=(*teachers, LABELLED_CAPTIONS),
        version="1",
        description=f"One row per signal and standardisation: agreement with the {ctx.ratings} ratings of caption "
        f"length alone "
        "and of the teachers raw, per length and with one global z-score; a warning where length alone agrees.",
        compute=_length_evidence,
        config=lambda ctx: {**_options(ctx), **fusion_options(ctx)},
        shown=Shown(warning_column="warning"),
    )
    yield Table(
        name=LABELLED_SCORES,
        grain="pool",
        inputs=(LABELLED_CAPTIONS, LENGTH_STATISTICS),
        version="1",
        compute=lambda ctx: standardised_labels(ctx, ctx.store.read(LABELLED_CAPTIONS)),
        config=_options,
        description="One row per rated caption: both teachers' scores on the scale of the distillation sample.",
    )


def _options(ctx: PoolContext) -> dict[str, Any]:
    options = StandardisedOptions.of(ctx)
    return {
        "grouping": options.standardise_by,
        "length_unit": options.length_unit,
        "min_group": options.min_group,
        "mu_logit": float(options.mu_logit),
    }


def fusion_options(ctx: PoolContext) -> dict[str, Any]:
    """The pool's options for the regression on ratings: ties (drop, pos, neg) and fusion_l2 (its penalty, 0: none)."""
    options = StandardisedOptions.of(ctx)
    return {"ties": options.ties, "l2": float(options.fusion_l2)}


def _lengths(ctx: PoolContext, captions: pl.Series) -> np.ndarray:
    return caption_length(captions.to_list(), StandardisedOptions.of(ctx).length_unit)


def _standardise(ctx: PoolContext, values: np.ndarray, lengths: np.ndarray, teacher: str) -> np.ndarray:
    return standardise(values, lengths, read_statistics(ctx, teacher), mu_logit=StandardisedOptions.of(ctx).mu_logit)


def _similarities(ctx: PoolContext, teacher: str, shard: str) -> tuple[np.ndarray, np.ndarray]:
    """Similarities inside (0, 1), NaN where there is none, and caption lengths, in the sample's order."""
    sample = ctx.store.read(DISTILLATION_SAMPLE, shard).select("sample_id", "caption")
    scored = sample.join(
        ctx.store.read(f"teachers/{teacher}", shard), on="sample_id", how="left", maintain_order="left"
    )
    return floats(scored["open_similarity"]), _lengths(ctx, scored["caption"])


def _pool_similarities(ctx: PoolContext, teacher: str) -> tuple[np.ndarray, np.ndarray]:
    parts = [_similarities(ctx, teacher, shard) for shard in ctx.store.partitions(f"teachers/{teacher}")]
    return np.concatenate([values for values, _ in parts]), np.concatenate([lengths for _, lengths in parts])


def _length_statistics(ctx: PoolContext) -> pl.DataFrame:
    options = StandardisedOptions.of(ctx)
    rows = []
    for teacher in teacher_names(ctx):
        values, lengths = _pool_similarities(ctx, teacher)
        statistics = fit_length_statistics(
            values, lengths, grouping=options.standardise_by, min_group=options.min_group
        )
        rows += [{"teacher": teacher, **row} for row in statistics.to_rows()]
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("length_high").cast(pl.Int64))


def read_statistics(ctx: PoolContext, teacher: str) -> LengthStatistics:
    """The persisted statistics of one teacher."""
    frame = ctx.store.read(LENGTH_STATISTICS).filter(pl.col("teacher") == teacher)
    return LengthStatistics.from_rows(frame.drop("teacher").to_dicts())


def _length_dependence(ctx: PoolContext) -> pl.DataFrame:
    options = StandardisedOptions.of(ctx)
    rows = []
    for teacher in teacher_names(ctx):
        values, lengths = _pool_similarities(ctx, teacher)
        before = length_dependence(values, lengths)
        after = length_dependence(_standardise(ctx, values, lengths, teacher), lengths)
        warning = length_warning(before, options.standardise_by, options.length_unit)
        for when, dependence in (("before", before), ("after", after)):
            rows.append(
                {
                    "teacher": teacher,
                    "when": when,
                    "length_unit": options.length_unit,
                    "slope_per_unit": dependence.slope_per_word,
                    "spearman": dependence.spearman,
                    "n": dependence.n,
                    "warning": warning if when == "before" else None,
                }
            )
    return pl.DataFrame(rows, schema_overrides={"warning": pl.String})


def _length_evidence(ctx: PoolContext) -> pl.DataFrame:
    options = StandardisedOptions.of(ctx)
    labelled = ctx.store.read(LABELLED_CAPTIONS)
    ratings, lengths = labelled["rating"].to_numpy(), _lengths(ctx, labelled["caption"])
    rows: list[dict[str, Any]] = []

    def add(signal: str, standardisation: str, values: np.ndarray) -> tuple[float, ...]:
        correlations = _agreement_or_none(values, ratings)
        rows.append({"signal": signal, "standardisation": standardisation, **correlations})
        return tuple(
            float("nan") if correlations[name] is None else correlations[name] for name in ("pearson", "spearman")
        )

    _, length_spearman = add("caption length", "none", lengths.astype(np.float64))
    for teacher in teacher_names(ctx):
        add(teacher, "none", floats(labelled[teacher]))
    fused = {}
    for grouping in get_args(Grouping):
        columns = []
        for teacher in teacher_names(ctx):
            statistics = fit_length_statistics(
                *_pool_similarities(ctx, teacher), grouping=grouping, min_group=options.min_group
            )
            similarities = floats(labelled[f"{teacher}_open_similarity"])
            columns.append(standardise(similarities, lengths, statistics, mu_logit=options.mu_logit))
            add(teacher, grouping, columns[-1])
        try:
            held_out = held_out_fusion(
                np.stack(columns, axis=1), ratings, np.random.default_rng(0), **fusion_options(ctx)
            )
        except ValueError:  # too few ratings for five folds: the row's values are null
            held_out = np.full(len(ratings), np.nan)
        fused[grouping], _ = add("fused, held out", grouping, held_out)
    warning = length_evidence(length_spearman, fused["length"], fused["global"], len(ratings), options.standardise_by)
    rows[0]["warning"] = warning
    return pl.DataFrame(rows, schema_overrides={"warning": pl.String}, infer_schema_length=None)


def _agreement_or_none(values: np.ndarray, ratings: np.ndarray) -> dict[str, Any]:
    """Three correlations; null where none exists (a constant side, too few pairs)."""
    n = int((np.isfinite(values) & np.isfinite(ratings)).sum())
    try:
        correlations = agreement(values, ratings)
    except ValueError:
        return {"pearson": None, "spearman": None, "kendall": None, "n": n}
    return {"pearson": correlations.pearson, "spearman": correlations.spearman, "kendall": correlations.kendall, "n": n}


def _teacher_scores(ctx: PoolContext, shard: str) -> pl.DataFrame:
    sample = ctx.store.read(DISTILLATION_SAMPLE, shard)
    scores = sample.select("sample_id", "caption").with_columns(
        pl.Series("caption_length", _lengths(ctx, sample["caption"]))
    )
    for teacher in teacher_names(ctx):
        values, lengths = _similarities(ctx, teacher, shard)
        scores = scores.with_columns(pl.Series(teacher, _standardise(ctx, values, lengths, teacher)).fill_nan(None))
    return scores


def standardised_labels(
    ctx: PoolContext, labelled: pl.DataFrame, reference: pl.DataFrame | None = None
) -> pl.DataFrame:
    """caption, rating and both teachers' scores on one scale, of rated captions that the teachers scored.

    The scale is the pool's; with `reference` (a frame like `labelled`) that of its captions.
    """
    options = StandardisedOptions.of(ctx)
    lengths = _lengths(ctx, labelled["caption"])
    scores = labelled.select("caption", "rating")
    for teacher in teacher_names(ctx):
        if reference is None:
            statistics = read_statistics(ctx, teacher)
        else:
            known = floats(reference[f"{teacher}_open_similarity"])
            lengths_known = _lengths(ctx, reference["caption"])
            statistics = fit_length_statistics(known, lengths_known, grouping=options.standardise_by)
        values = floats(labelled[f"{teacher}_open_similarity"])
        scaled = standardise(values, lengths, statistics, mu_logit=options.mu_logit)
        scores = scores.with_columns(pl.Series(teacher, scaled).fill_nan(None))
    return scores
