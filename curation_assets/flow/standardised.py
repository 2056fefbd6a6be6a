"""standardised: pool statistics per caption length, and teacher values brought to one scale (ICC §4.3)."""

from collections.abc import Iterator
from typing import cast, get_args

import numpy as np
import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.numeric.standardise import (
    Grouping,
    LengthStatistics,
    caption_length,
    fit_length_statistics,
    length_dependence,
    length_warning,
    standardise,
)

TEACHERS = ("vba", "sba")


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage; none where the pool distils no student of its own."""
    if not ctx.distils:
        return
    teachers = tuple(f"teachers/{name}" for name in TEACHERS)
    yield Table(
        name="standardised/length_statistics",
        grain="pool",
        inputs=teachers,
        version="1",
        compute=_length_statistics,
        config=lambda ctx, shard: {"grouping": _grouping(ctx)},
        is_frozen=True,
        description=(
            "One row per teacher and group of caption lengths: mean and population sd of the logit similarity. "
            "Frozen: rows that come later change nothing until `curate recut --fits`."
        ),
    )
    yield Table(
        name="standardised/length_dependence",
        grain="pool",
        inputs=(*teachers, "standardised/length_statistics"),
        version="1",
        compute=_length_dependence,
        config=lambda ctx, shard: {"grouping": _grouping(ctx)},
        description=(
            "One row per teacher, before and after: slope per word and Spearman correlation with caption length, and a "
            "warning where length itself carries signal that the grouping would remove."
        ),
    )
    yield Table(
        name="standardised/teacher_scores",
        grain="shard",
        inputs=(*teachers, "standardised/length_statistics"),
        version="1",
        compute=_teacher_scores,
        continues="teachers/distillation_sample",
        description="One row per distillation sample: both teachers' scores on the LN(0.5, 1) scale, in (0, 1).",
    )
    yield Table(
        name="standardised/labelled_scores",
        grain="pool",
        inputs=("teachers/labelled_captions", "standardised/length_statistics"),
        version="1",
        compute=_labelled_scores,
        description="One row per rated caption: both teachers' scores on the scale of the distillation sample.",
    )


def _grouping(ctx: PoolContext) -> Grouping:
    chosen = ctx.option("standardise_by", "length")
    if chosen not in get_args(Grouping):
        raise ValueError(f"option standardise_by must be one of {get_args(Grouping)}, got {chosen!r}")
    return cast(Grouping, chosen)


def _similarities(ctx: PoolContext, teacher: str, shard: str) -> tuple[np.ndarray, np.ndarray]:
    """Similarities inside (0, 1), NaN where there is none, and caption lengths in words, in the sample's order."""
    sample = ctx.store.read("teachers/distillation_sample", shard).select("sample_id", "caption")
    scored = sample.join(
        ctx.store.read(f"teachers/{teacher}", shard), on="sample_id", how="left", maintain_order="left"
    )
    return _floats(scored["open_similarity"]), caption_length(scored["caption"].to_list())


def _pool_similarities(ctx: PoolContext, teacher: str) -> tuple[np.ndarray, np.ndarray]:
    parts = [_similarities(ctx, teacher, shard) for shard in ctx.store.partitions(f"teachers/{teacher}")]
    return np.concatenate([values for values, _ in parts]), np.concatenate([lengths for _, lengths in parts])


def _floats(column: pl.Series) -> np.ndarray:
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _length_statistics(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    rows = []
    for teacher in TEACHERS:
        values, lengths = _pool_similarities(ctx, teacher)
        statistics = fit_length_statistics(values, lengths, grouping=_grouping(ctx))
        rows += [{"teacher": teacher, **row} for row in statistics.to_rows()]
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("length_high").cast(pl.Int64))


def read_statistics(ctx: PoolContext, teacher: str) -> LengthStatistics:
    """The persisted statistics of one teacher."""
    frame = ctx.store.read("standardised/length_statistics").filter(pl.col("teacher") == teacher)
    return LengthStatistics.from_rows(frame.drop("teacher").to_dicts())


def _length_dependence(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    rows = []
    for teacher in TEACHERS:
        values, lengths = _pool_similarities(ctx, teacher)
        before = length_dependence(values, lengths)
        after = length_dependence(standardise(values, lengths, read_statistics(ctx, teacher)), lengths)
        warning = length_warning(before, _grouping(ctx))
        for when, found in (("before", before), ("after", after)):
            rows.append(
                {
                    "teacher": teacher,
                    "when": when,
                    "slope_per_word": found.slope_per_word,
                    "spearman": found.spearman,
                    "n": found.n,
                    "warning": warning if when == "before" else None,
                }
            )
    return pl.DataFrame(rows, schema_overrides={"warning": pl.String})


def _teacher_scores(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    assert shard is not None
    sample = ctx.store.read("teachers/distillation_sample", shard)
    scores = sample.select("sample_id", "caption").with_columns(
        pl.Series("caption_length", caption_length(sample["caption"].to_list()))
    )
    for teacher in TEACHERS:
        values, lengths = _similarities(ctx, teacher, shard)
        scores = scores.with_columns(
            pl.Series(teacher, standardise(values, lengths, read_statistics(ctx, teacher))).fill_nan(None)
        )
    return scores


def _labelled_scores(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    return standardised_labels(ctx, ctx.store.read("teachers/labelled_captions"))


def standardised_labels(ctx: PoolContext, labelled: pl.DataFrame) -> pl.DataFrame:
    """caption, rating and both teachers' scores on the pool's scale, of rated captions that the teachers scored."""
    lengths = caption_length(labelled["caption"].to_list())
    scores = labelled.select("caption", "rating")
    for teacher in TEACHERS:
        values = _floats(labelled[f"{teacher}_open_similarity"])
        scores = scores.with_columns(
            pl.Series(teacher, standardise(values, lengths, read_statistics(ctx, teacher))).fill_nan(None)
        )
    return scores
