"""Held-out quality of the embedded models: a fresh planted pool through the same flow, judged by its truth.

    python benchmarks/quality.py [--size 1600] [--captions 700] [--seed 9100001] [--out TABLE]

Teachers, fusion, student, CLIPScore and SIEVE against the planted truth of a fresh scene pool.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.cli.common import show, show_table
from curation_assets.core.progress import ProgressReporter, reporter_for
from curation_assets.core.settings import Settings, load_settings
from curation_assets.evaluation.tables import with_truth
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.fusion import fit_logistic_fusion, fuse
from curation_assets.numeric.metrics.concreteness import concreteness_report
from curation_assets.numeric.standardise import caption_length, fit_length_statistics, standardise
from curation_assets.sources.declaration import add_world_pool
from curation_assets.stages.standardised.tables import fusion_options, standardised_labels
from curation_assets.stages.teachers.tables import score_in_parts

POOL, BALANCED = "planted concreteness", "balanced captions"
#: What the feasibility study of the embedded models measured: the bar. Its two test sets are a pool of the web's mix,
#: and 400 captions balanced over levels and lengths (Pearson, Spearman, Kendall tau-b).
AGREEMENT_REFERENCE: dict[tuple[str, str], tuple[float, float, float]] = {
    (POOL, "vba"): (0.831, 0.811, 0.666),
    (POOL, "sba"): (0.547, 0.641, 0.491),
    (POOL, "fused teachers, one scale for all lengths"): (0.891, 0.819, 0.673),
    (POOL, "icc"): (0.923, 0.864, 0.723),
    (BALANCED, "vba"): (0.849, 0.857, 0.708),
    (BALANCED, "vba, standardised"): (0.872, 0.856, 0.707),
    (BALANCED, "sba"): (0.616, 0.655, 0.513),
    (BALANCED, "sba, standardised"): (0.677, 0.669, 0.525),
    (BALANCED, "fused teachers"): (0.887, 0.870, 0.726),
    (BALANCED, "icc"): (0.925, 0.908, 0.779),
}
AUC_REFERENCE: dict[str, float] = {"clip_score": 0.977, "sieve": 0.975, "sieve_clip": 0.995}
METRICS = ("pearson", "spearman", "kendall")


def bench_embedded(
    settings: Settings,
    *,
    size: int,
    captions: int,
    seed: int,
    balanced: int = 400,
    progress: ProgressReporter | None = None,
) -> pl.DataFrame:
    """Columns target, method, metric, value, n, reference (null where the study has none).

    Plants a pool of `size` samples with `seed`, runs every table that `downstream/method_quality` needs, and returns
    that table, and the same agreement on `balanced` captions of no pool, beside the reference figures.
    """
    pool = add_world_pool(
        settings,
        "bench",
        size=size,
        seed=seed,
        shard_size=-(-size // 2),
        options={"distillation_size": captions, "fusion_l2": 1.0},
    )
    ctx = PoolContext.open(settings, pool.name, progress=progress)
    run_with_upstream(ctx, "downstream/method_quality")
    columns = ["target", "method", "metric", "value", "n"]
    quality = pl.concat(
        [
            ctx.store.read("downstream/method_quality").select(columns),
            _quality_on_one_scale(ctx).select(columns),
            _quality_on_balanced(ctx, balanced, seed).select(columns),
        ],
        how="vertical_relaxed",
    )
    reference = [_reference(row["target"], row["method"], row["metric"]) for row in quality.iter_rows(named=True)]
    return quality.with_columns(pl.Series("reference", reference, dtype=pl.Float64))


def _reference(target: str, method: str, metric: str) -> float | None:
    if metric == "auc":
        return AUC_REFERENCE.get(method)
    figures = AGREEMENT_REFERENCE.get((target, method))
    return figures[METRICS.index(metric)] if figures is not None and metric in METRICS else None


def _quality_on_one_scale(ctx: PoolContext) -> pl.DataFrame:
    """The pool's fused teachers with one z-score for all caption lengths, as the study fused on its pool."""
    labels = ctx.store.read("teachers/labelled_captions")
    sample = ctx.store.scan("teachers/distillation_sample").select("sample_id", "caption").collect()
    judged = with_truth(ctx, f"teachers/{teacher_names(ctx)[0]}", "value").select(
        "sample_id", pl.col("concreteness").cast(pl.Float64)
    )
    sample = sample.join(judged.drop_nulls(), on="sample_id", maintain_order="left")
    scores, labelled = [], []
    for teacher in teacher_names(ctx):
        similarities = ctx.store.scan(f"teachers/{teacher}").select("sample_id", "open_similarity").collect()
        values = sample.join(similarities, on="sample_id", how="left", maintain_order="left")["open_similarity"]
        lengths = caption_length(sample["caption"].to_list())
        statistics = fit_length_statistics(_floats(values), lengths, grouping="global")
        scores.append(standardise(_floats(values), lengths, statistics))
        given = _floats(labels[f"{teacher}_open_similarity"])
        labelled.append(standardise(given, caption_length(labels["caption"].to_list()), statistics))
    ratings = labels["rating"].to_numpy()
    weights = fit_logistic_fusion(np.stack(labelled, axis=1), ratings, names=teacher_names(ctx), **fusion_options(ctx))
    fused = fuse(np.stack(scores, axis=1), weights)
    return _agreement_rows(POOL, {"fused teachers, one scale for all lengths": fused}, sample["concreteness"])


def _quality_on_balanced(ctx: PoolContext, count: int, seed: int) -> pl.DataFrame:
    """Agreement with planted concreteness on captions balanced over four levels and four lengths.

    They are their own scale, as in the study: among them length says nothing of concreteness, in the pool's mix the
    shortest and longest captions are less concrete.
    """
    from curation_assets.world.pool import plant_labelled_captions

    planted = pl.DataFrame(
        plant_labelled_captions(count, seed), schema={"caption": pl.String, "rating": pl.Float64}, orient="row"
    )
    raw = score_in_parts(ctx, planted)
    scaled = standardised_labels(ctx, raw, reference=raw)
    labels = standardised_labels(ctx, ctx.store.read("teachers/labelled_captions"), reference=raw)
    weights = fit_logistic_fusion(
        _teacher_scores(ctx, labels), labels["rating"].to_numpy(), names=teacher_names(ctx), **fusion_options(ctx)
    )
    student = ctx.engines(["student"])["student"]
    values: dict[str, np.ndarray] = {name: raw[name].to_numpy() for name in teacher_names(ctx)}
    values |= {f"{name}, standardised": scaled[name].to_numpy() for name in teacher_names(ctx)}
    values |= {
        "fused teachers": fuse(_teacher_scores(ctx, scaled), weights),
        "icc": student.score_captions(planted["caption"].to_list()),
    }
    return _agreement_rows(BALANCED, values, planted["rating"])


def _agreement_rows(target: str, values: Mapping[str, np.ndarray], ratings: pl.Series) -> pl.DataFrame:
    rows = []
    for method, value in values.items():
        found = concreteness_report(np.asarray(value, dtype=np.float64), ratings.to_numpy()).agreement
        rows += [
            {"target": target, "method": method, "metric": metric, "value": getattr(found, metric), "n": found.n}
            for metric in METRICS
        ]
    return pl.DataFrame(rows)


def _floats(column: pl.Series) -> np.ndarray:
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _teacher_scores(ctx: PoolContext, scaled: pl.DataFrame) -> np.ndarray:
    return scaled.select(teacher_names(ctx)).to_numpy().astype(np.float64)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1600, help="samples of the held-out pool")
    parser.add_argument("--captions", type=int, default=700, help="captions that the teachers score")
    parser.add_argument(
        "--seed", type=int, default=9_100_001, help="of the held-out pool; the shipped models saw other seeds"
    )
    parser.add_argument("--out", type=Path, help="also write the table as Parquet or CSV")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="curation-bench-") as folder:
        quality = bench_embedded(
            load_settings(Path(folder), "embedded"),
            size=chosen.size,
            captions=chosen.captions,
            seed=chosen.seed,
            progress=reporter_for(),
        )
    rows = []
    for row in quality.iter_rows(named=True):
        reference = "" if row["reference"] is None else f"{row['reference']:.3f}"
        rows.append((row["target"], row["method"], row["metric"], f"{row['value']:.3f}", reference, str(row["n"])))
    title = f"Held-out pool of {chosen.size} samples, seed {chosen.seed}"
    show_table(("target", "method", "metric", "measured", "reference", "n"), rows, left=3, title=title)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        quality.write_parquet(chosen.out) if chosen.out.suffix == ".parquet" else quality.write_csv(chosen.out)
        show(f"Written to {chosen.out}")


if __name__ == "__main__":
    main()
