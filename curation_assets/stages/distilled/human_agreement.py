"""How well every part of ICC agrees with ratings: teachers, similarities, fusion, student, baselines (formulas §1.9).

Part of the stage distilled. Options of a pool: `caption_benchmark` and `word_benchmark` (files of the user's; nothing
is ever fitted on them), `agreement_methods` (further methods that read captions, such as concreteness_lexicon,
clip_stroop, ave_clip), `agreement_similarities` (besides a teacher's own; text_similarity runs a model on every
beam), `agreement_resamples` (bootstrap draws).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl

from curation_assets.annotation.ratings import only_unigram_nouns
from curation_assets.core.roles import ROLES
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import (
    AGREEMENT,
    BENCHMARK_CAPTIONS,
    FUSION_WEIGHTS,
    LABELLED_CAPTIONS,
    LENGTH_STATISTICS,
    RATED_SCORES,
)
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.parallel import call_in_parts
from curation_assets.flow.table import Needs, Shown, Table
from curation_assets.methods import Method, get_method, oriented
from curation_assets.numeric.agreement import agreement
from curation_assets.numeric.fusion import FusionWeights, fuse, repeated_held_out_fusion
from curation_assets.numeric.identity import sample_id_of
from curation_assets.numeric.similarity import edit_similarity
from curation_assets.numeric.standardise import caption_length, length_dependence
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples
from curation_assets.stages.distilled.options import DistilledOptions, Similarity
from curation_assets.stages.distilled.students import score_with_students
from curation_assets.stages.standardised.tables import fusion_options, standardised_labels
from curation_assets.stages.teachers.options import TeachersOptions
from curation_assets.stores.text_tables import read_table

RATED, PLANTED, CAPTIONS, WORDS = "rated captions", "planted ratings", "caption benchmark", "word benchmark"
CODE_COSINE = "cosine"
HELD_OUT = "fused, out of fold"  # weights of the other four fifths of the ratings, ten times
CAPTION_LENGTH = "caption length"
OWN_STUDENT, SHIPPED_STUDENT = "pool:icc_student", "embedded:icc_student"
CORRELATIONS = ("pearson", "spearman", "kendall")


def has_agreement(ctx: PoolContext) -> bool:
    """Whether there is anything rated to compare with."""
    return any((ctx.ratings, TeachersOptions.of(ctx).caption_benchmark, DistilledOptions.of(ctx).word_benchmark))


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The tables of this file; that of single captions where people rated some."""
    if not (ctx.distils and has_agreement(ctx)):
        return
    on_students = FlowOptions.of(ctx).fuse_on == "student"
    inputs: list[str] = [LENGTH_STATISTICS, FUSION_WEIGHTS]
    if ctx.ratings is not None:
        inputs.insert(0, LABELLED_CAPTIONS)
    if TeachersOptions.of(ctx).caption_benchmark is not None:
        inputs.append(BENCHMARK_CAPTIONS)
    if on_students:
        inputs += [f"distilled/student_{teacher}" for teacher in teacher_names(ctx)]
    inputs += [f"distilled/{name.removeprefix('pool:')}" for name in _students(ctx).values() if name[:5] == "pool:"]
    yield Table(
        name=AGREEMENT,
        grain="pool",
        inputs=tuple(inputs),
        version="2",
        description="One row per benchmark and scorer: Pearson, Spearman and Kendall tau-b with the ratings, bootstrap "
        "intervals, and how much the score follows caption length. The ablation of teacher, similarity, "
        "standardisation and student in one place.",
        compute=_agreement,
        needs=Needs(roles=_roles(ctx), core=True),
        config=_config,
        shown=Shown(kinds=("torch", "polars")),
    )
    if ctx.ratings == "human" or TeachersOptions.of(ctx).caption_benchmark is not None:
        yield Table(
            name=RATED_SCORES,
            grain="pool",
            inputs=tuple(inputs),
            version="1",
            compute=_rated_scores,
            needs=Needs(roles=_roles(ctx), core=True),
            config=lambda ctx: {**_config(ctx), "fusion": fusion_options(ctx)},
            description=(
                "One row per caption that people rated and scorer, for paired differences. Fused out of fold: by "
                "weights fitted on four fifths of the captions, without the one, mean of ten divisions."
            ),
            shown=Shown(kinds=("torch", "polars")),
        )


def _extra_methods(ctx: PoolContext) -> list[Method]:
    """Methods of the option `agreement_methods`. Raises ValueError for one that reads more than captions."""
    methods = []
    for name in DistilledOptions.of(ctx).agreement_methods:
        method = get_method(name)
        if not set(method.columns) <= {"caption", "sample_id"}:
            raise ValueError(
                f"option agreement_methods takes methods that read captions alone; {name} reads {method.columns}"
            )
        methods.append(with_parameters(method, **ctx.profile.methods.get(name, {})))
    return methods


def _roles(ctx: PoolContext) -> tuple[str, ...]:
    of_methods = {role for method in _extra_methods(ctx) for role in method.roles}
    of_similarities = {name for teacher in teacher_names(ctx) for name in _similarities(ctx, teacher)} & set(ROLES)
    return tuple(sorted({"student"} | of_methods | of_similarities))


def _students(ctx: PoolContext) -> dict[str, str]:
    """Scorer → address: `icc` is the student in use; of real captions the one not in use stands beside it."""
    used = ctx.profile.address("student")
    students = {"icc": used}
    if ctx.ratings != "planted":
        others = {"icc, the pool's own student": OWN_STUDENT, "icc, the shipped student": SHIPPED_STUDENT}
        students |= {name: address for name, address in others.items() if address != used}
    return students


def _config(ctx: PoolContext) -> dict[str, Any]:
    options = DistilledOptions.of(ctx)
    words = options.word_benchmark
    return {
        "methods": {method.name: [method.version, ctx.method_config(method.name)] for method in _extra_methods(ctx)},
        "similarities": {teacher: _similarities(ctx, teacher) for teacher in teacher_names(ctx)},
        "resamples": options.agreement_resamples,
        "students": _students(ctx),
        **({} if words is None else {"words_sha256": Path(words)}),
    }


def _rated(ctx: PoolContext) -> dict[str, pl.DataFrame]:
    """Benchmark → captions with ratings and the teachers' values."""
    rated = {}
    if ctx.ratings is not None:
        rated[PLANTED if ctx.ratings == "planted" else RATED] = ctx.store.read(LABELLED_CAPTIONS)
    if TeachersOptions.of(ctx).caption_benchmark is not None:
        rated[CAPTIONS] = ctx.store.read(BENCHMARK_CAPTIONS)
    return rated


def _saw_ratings(ctx: PoolContext) -> pl.Expr:
    """Three numbers (a, b, c) were fitted on the rated captions, so what is built on them has seen these ratings."""
    fitted = ["fused", *(name for name, address in _students(ctx).items() if address.startswith("pool:"))]
    saw = pl.col("benchmark").is_in([RATED, PLANTED]) & pl.col("scorer").is_in(fitted)
    return saw.alias("saw_ratings")


def _agreement(ctx: PoolContext) -> pl.DataFrame:
    rated = _rated(ctx)
    if (words := DistilledOptions.of(ctx).word_benchmark) is not None:
        rated[WORDS] = _words(Path(words))
    rows = []
    for benchmark, table in rated.items():
        for scorer in _scorers(ctx, _with_model_scores(ctx, table)):
            rows.append({"benchmark": benchmark, **_row(ctx, table, **scorer), "saw_ratings": False})
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(_saw_ratings(ctx))


def _rated_scores(ctx: PoolContext) -> pl.DataFrame:
    parts = []
    for benchmark, table in _rated(ctx).items():
        scored = _with_model_scores(ctx, table)
        scores = {
            one["scorer"]: one["values"]
            for one in _scorers(ctx, scored)
            if one["similarity"] is None or one["standardised"]
        }
        if benchmark == RATED:
            ratings = _floats(table.select("rating"))[:, 0]
            inputs = _floats(_fusion_inputs(ctx, scored))
            scores[HELD_OUT] = repeated_held_out_fusion(inputs, ratings, **fusion_options(ctx))
        captions = table.select(pl.lit(benchmark).alias("benchmark"), "caption", pl.col("rating").cast(pl.Float64))
        for scorer, values in scores.items():
            score = pl.Series("score", _floats(pl.DataFrame({"score": values}))[:, 0]).fill_nan(None)
            parts.append(captions.with_columns(pl.lit(scorer).alias("scorer"), score))
    return pl.concat(parts).with_columns(_saw_ratings(ctx))


def _words(path: Path) -> pl.DataFrame:
    nouns = only_unigram_nouns(read_table(path))
    rating = next((name for name in ("conc_mean", "rating") if name in nouns.columns), None)
    if "word" not in nouns.columns or rating is None:
        raise ValueError(f"{path}: expected columns word and conc_mean (or Word and Conc.M), got {nouns.columns}")
    ratings = nouns[rating].cast(pl.String).cast(pl.Float64, strict=False)
    words = pl.DataFrame({"caption": nouns["word"].cast(pl.String), "rating": ratings})
    words = words.filter(pl.col("caption").str.strip_chars() != "")
    if words.is_empty():
        raise ValueError(f"{path}: none of its rows is a unigram noun (bigram 0, pos Noun)")
    return words


def _with_model_scores(ctx: PoolContext, table: pl.DataFrame) -> pl.DataFrame:
    """`table` with the models' scores of its captions, in as many parts as there are workers."""
    return pl.concat(call_in_parts(ctx.settings, score_with_models, ctx.pool.name, table))


def score_with_models(settings: Settings, pool_name: str, table: pl.DataFrame) -> pl.DataFrame:
    """`table` with the columns icc, one per extra method, and per teacher and similarity the best of its beams.

    Also student_vba and student_sba where the pool fuses on students.
    """
    from curation_assets.engines import load_engine  # heavy imports wait until a model is needed

    ctx = PoolContext.open(settings, pool_name)
    texts = table["caption"].to_list()
    columns = []
    for name, address in _students(ctx).items():
        student: Any = load_engine("student", ctx.profile.with_roles(student=address), pool_models=ctx.pool_models)
        columns.append(pl.Series(name, student.score_captions(texts), dtype=pl.Float64))
    if FlowOptions.of(ctx).fuse_on == "student":
        columns += [column.alias(f"student_{column.name}") for column in score_with_students(ctx, table["caption"])]
    ids = pl.Series("sample_id", [sample_id_of("", text) for text in texts])
    samples = table.select("caption").with_columns(ids)
    for method in _extra_methods(ctx):
        scored = score_samples(method, samples, ctx.engines(method.roles), batch_size=ctx.batch_size(method.roles))
        columns.append(scored["value"].alias(method.name))
    for teacher in teacher_names(ctx):
        if f"{teacher}_reconstructions" not in table.columns:
            continue
        beams = table[f"{teacher}_reconstructions"].to_list()
        for name in _similarities(ctx, teacher):
            if name == own_similarity(teacher):
                values = table[teacher]
            elif name == "edit_similarity":
                values = _best_of_beams(beams, texts, edit_similarity)
            else:
                text_similarity = ctx.engines([name])[name]
                values = _best_of_beams(beams, texts, text_similarity.similarity)
            columns.append(values.alias(f"{teacher}_{name}"))
    return table.with_columns(columns)


def _similarities(ctx: PoolContext, teacher: str) -> list[str]:
    """The teacher's own similarity and those of the option."""
    own = own_similarity(teacher)
    if own == CODE_COSINE:
        return [own]
    requested = (own, *DistilledOptions.of(ctx).agreement_similarities)
    return [name for name in get_args(Similarity) if name in requested]


def own_similarity(teacher: str) -> str:
    """The similarity that the teacher's own value is; CODE_COSINE where it writes no text."""
    if "sentence_bottleneck" in get_method(teacher).roles:
        return CODE_COSINE
    return "text_similarity" if "text_similarity" in get_method(teacher).roles else "edit_similarity"


def _best_of_beams(beams: list[list[str] | None], texts: list[str], similarity: Any) -> pl.Series:
    flat = [(beam, text) for beams_of_image, text in zip(beams, texts, strict=True) for beam in beams_of_image or []]
    values = iter(similarity([beam for beam, _ in flat], [text for _, text in flat]) if flat else [])
    return pl.Series(
        [max((float(next(values)) for _ in beams_of_image or []), default=None) for beams_of_image in beams],
        dtype=pl.Float64,
    )


def _fusion_inputs(ctx: PoolContext, scored: pl.DataFrame) -> pl.DataFrame:
    """What the fusion's weights are of, a column per teacher: standardised values, or those of its student."""
    names = teacher_names(ctx)
    if f"student_{names[0]}" in scored.columns:
        return scored.select(f"student_{name}" for name in names)
    return standardised_labels(ctx, scored).select(names)


def _scorers(ctx: PoolContext, scored: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Every scorer of a table with its numbers: scorer, similarity, standardised, values."""

    def of(scorer: str, values: Any, similarity: str | None = None, standardised: bool = False) -> dict[str, Any]:
        return {"scorer": scorer, "similarity": similarity, "standardised": standardised, "values": values}

    has_teachers = set(teacher_names(ctx)) <= set(scored.columns)
    if has_teachers:
        for teacher in teacher_names(ctx):
            for name in _similarities(ctx, teacher):
                yield of(teacher, scored[f"{teacher}_{name}"], name)
        scaled = standardised_labels(ctx, scored)
        for teacher in teacher_names(ctx):
            yield of(teacher, scaled[teacher], own_similarity(teacher), standardised=True)
    weights = FusionWeights.from_dict(ctx.store.read(FUSION_WEIGHTS).row(0, named=True))
    on_students = FlowOptions.of(ctx).fuse_on == "student"
    if on_students:
        for teacher in teacher_names(ctx):
            yield of(f"student of {teacher}", scored[f"student_{teacher}"])
    if on_students or has_teachers:
        yield of("fused", fuse(_floats(_fusion_inputs(ctx, scored)), weights))
    for name in _students(ctx):
        yield of(name, scored[name])
    for method in _extra_methods(ctx):
        yield of(method.name, oriented(f"{method.stage}.{method.name}", scored[method.name]))
    yield of(CAPTION_LENGTH, caption_length(scored["caption"].to_list()))


def _floats(frame: pl.DataFrame) -> np.ndarray:
    return frame.select(pl.all().cast(pl.Float64).fill_null(float("nan"))).to_numpy()


def _row(
    ctx: PoolContext, table: pl.DataFrame, scorer: str, similarity: str | None, standardised: bool, values: Any
) -> dict[str, Any]:
    numbers = _floats(pl.DataFrame({"values": values}))[:, 0]
    row: dict[str, Any] = {"scorer": scorer, "similarity": similarity, "standardised": standardised}
    ratings = _floats(table.select("rating"))[:, 0]
    resamples = DistilledOptions.of(ctx).agreement_resamples
    try:
        correlations = agreement(numbers, ratings, np.random.default_rng(0) if resamples else None, resamples=resamples)
    except ValueError as error:  # a constant score correlates with nothing: the row carries the reason
        empty = {f"{name}{end}": None for name in CORRELATIONS for end in ("", "_low", "_high")}
        return {**row, **empty, "n": int(np.isfinite(numbers).sum()), "length_slope": None, "length_spearman": None,
                "reason": str(error)}  # fmt: skip
    for name in CORRELATIONS:
        low, high = correlations.intervals.get(name, (None, None))
        row |= {name: getattr(correlations, name), f"{name}_low": low, f"{name}_high": high}
    length = length_dependence(numbers, caption_length(table["caption"].to_list()))
    return {**row, "n": correlations.n, "length_slope": length.slope_per_word, "length_spearman": length.spearman,
            "reason": None}  # fmt: skip
