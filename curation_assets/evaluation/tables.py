"""downstream: what a model trained on each subset is worth, how good the methods are, and the report."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.core.table_names import (
    AGREEMENT,
    BENCHMARKS,
    CONTAMINATION,
    FUSION_WEIGHTS,
    LABELLED_SCORES,
    LENGTH_DEPENDENCE,
    LENGTH_EVIDENCE,
    METHOD_QUALITY,
    NEAR_DUPLICATES,
    OVERLAPS,
    PROVENANCE,
    REPORT,
    SAMPLES,
    SEPARATION,
    TARGETS,
    TEACHER_SCORES,
    TEXT_IN_IMAGES,
    table_of,
)
from curation_assets.evaluation import evaluation_set, subset_training
from curation_assets.evaluation.evaluation_set import SCENES, untrained_reason
from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.evaluation.training_sets import HELD_OUT, TRAINING_SETS, keys_of_pool
from curation_assets.evaluation.truth import has_truth, read_truth, truth_config
from curation_assets.evaluation.vision_features import EVALUATION_FEATURES, VISION_FEATURES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes, made_for, policies_of, shown_name, sql_recipes, teacher_names
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.parallel import beside
from curation_assets.flow.table import Ending, Folder, Shown, Table
from curation_assets.methods import oriented
from curation_assets.stages.distilled.human_agreement import has_agreement
from curation_assets.stages.filtered.tables import KEPT_BY, with_policies

#: What the report does not read of what models are trained and measured on.
NOT_SHOWN = (SCENES, HELD_OUT, TRAINING_SETS, VISION_FEATURES, EVALUATION_FEATURES)


def tables(ctx: PoolContext) -> Iterator[Table]:
    """How good the methods are against planted truth, and the report of all stages."""
    verdicts = tuple(f"filtered/{policy.name}" for policy in policies_of(ctx))
    trained = (table.name for part in (evaluation_set, subset_training) for table in part.tables(ctx))
    downstream = [name for name in trained if name not in NOT_SHOWN]
    signals = tuple(f"signals/{method.name}" for method in ctx.methods("signals"))
    quality: tuple[str, ...] = ()
    if ctx.pool.is_planted:
        teachers: tuple[str, ...] = ()
        if ctx.distils:
            scored = (f"teachers/{name}" for name in teacher_names(ctx))
            teachers = (*scored, TEACHER_SCORES, TARGETS)
        quality = (METHOD_QUALITY,)
        yield Table(
            name=METHOD_QUALITY,
            grain="pool",
            inputs=(SAMPLES, *signals, *teachers, "fused/sieve_clip"),
            version="2",
            compute=_method_quality,
            description=(
                "One row per method and metric against the planted truth: agreement with planted concreteness, AUC of "
                "aligned against mismatched samples."
            ),
        )
    if has_truth(ctx):
        quality += (SEPARATION,)
        yield Table(
            name=SEPARATION,
            grain="pool",
            inputs=(SAMPLES, *sorted({table for table, _ in _separating_tables(ctx).values()})),
            version="4",
            compute=_separation,
            config=None if DownstreamOptions.of(ctx).truth is None else truth_config,
            description=(
                "One row per method and planted noise kind: AUC of clean samples against it (.5 is chance) with its "
                "95 % interval, samples with and without a value, and, for a kind that the method was made for, "
                "whether it separates it."
            ),
        )
    optional: tuple[str, ...] = ()
    if "signals/text_spotting" in signals:
        optional = (TEXT_IN_IMAGES,)
        yield Table(
            name=TEXT_IN_IMAGES,
            grain="pool",
            inputs=("signals/text_spotting", *verdicts),
            version="1",
            compute=_text_in_images,
            description=(
                "One row per subset (and 'all'): share of images with confirmed text, and share that the text-spotting "
                "filter drops."
            ),
        )
    if FlowOptions.of(ctx).duplicates is not None:
        optional += (NEAR_DUPLICATES,)
    if FlowOptions.of(ctx).decontaminate:
        optional += (BENCHMARKS, CONTAMINATION)
    ranked = {table_of(reference) for policy in policies_of(ctx) for reference in policy.references} - set(signals)
    ranked -= set(optional)
    report_inputs = [SAMPLES, PROVENANCE, *signals, *sorted(ranked), *verdicts, OVERLAPS, *downstream, *quality]
    report_inputs += optional
    if ctx.distils:
        report_inputs += [LENGTH_DEPENDENCE, FUSION_WEIGHTS]
        report_inputs += [AGREEMENT] if has_agreement(ctx) else [TARGETS]
        if ctx.ratings is not None:
            report_inputs += [LABELLED_SCORES, LENGTH_EVIDENCE]
    yield Table(
        name=REPORT,
        grain="pool",
        inputs=tuple(report_inputs),
        version="4",
        description=(
            "HTML pages: report.html (counts, where rows come from, distributions, galleries of kept and dropped "
            "samples, metrics, costs), compare.html (two policies side by side, as they are and at 5, 10, … 95 %)."
        ),
        compute=Folder(_report),
        config=lambda ctx: {"untrained": untrained_reason(ctx)},
        shown=Shown(kinds=("html",), ending=_trained_models),
    )


def _trained_models(ctx: PoolContext) -> Ending | None:
    """How many models were trained, or why none was although the declaration wants it."""
    reason = untrained_reason(ctx)
    if reason is not None:
        return Ending(reason, is_warning=True) if ctx.trains_downstream else None
    keys = keys_of_pool(ctx)
    counts = {name: trained_count(ctx, name, keys) for name in subset_training.trainers_of(ctx)}
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    text = f"Models   {said}, of {len(keys)} training sets each; `curate evaluate compare {ctx.pool.name}`"
    return Ending(text if any(counts.values()) else f"{text} has the reasons", is_warning=not any(counts.values()))


def trained_count(ctx: PoolContext, trainer: str, keys: Sequence[str]) -> int:
    """Training sets of these keys that a model was trained on: of one that is too small, a run has no row."""
    runs = (ctx.store.manifest(f"downstream/{trainer}_runs", key) for key in keys)
    return sum(run is not None and run.row_count > 0 for run in runs)


def with_truth(ctx: PoolContext, table: str, column: str, *, with_gaps: bool = False) -> pl.DataFrame:
    """sample_id, value and the columns of the truth of the samples with a value, or of all that raw kept.

    Higher values are better.
    """
    reference = f"teachers/{column}" if table == TEACHER_SCORES else table
    value = oriented(reference, pl.col(column).cast(pl.Float64)).alias("value")
    values = ctx.store.scan(table).select("sample_id", value).collect()
    valued = values.filter(pl.col("value").is_not_null())
    if not with_gaps:
        return valued.join(read_truth(ctx), on="sample_id")
    kept = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept").select("sample_id").collect()
    valued_rows = kept.filter(pl.col("sample_id").is_in(values["sample_id"].implode()))
    return valued_rows.join(valued, on="sample_id", how="left").join(read_truth(ctx), on="sample_id")


def _valued_tables(ctx: PoolContext) -> dict[str, tuple[str, str]]:
    """Shown name → (table, column) of everything that gives samples a number."""
    columns = {method.name: (f"signals/{method.name}", "value") for method in ctx.methods("signals")}
    return columns | {"sieve_clip": ("fused/sieve_clip", "quality")}


def _separating_tables(ctx: PoolContext) -> dict[str, tuple[str, str]]:
    """Shown name → (table, column): signals, then the recipes over them, then the teachers where they run."""
    columns = {method.name: (f"signals/{method.name}", "value") for method in ctx.methods("signals")}
    columns |= {shown_name(recipe): (f"fused/{recipe.name}", "quality") for recipe in sql_recipes(ctx)}
    for name in fitted_recipes(ctx):
        columns[f"fused {name}" if name in columns else name] = (f"fused/{name}", "quality")
    if ctx.distils:
        columns |= {name: (TEACHER_SCORES, name) for name in teacher_names(ctx)}
    return columns


def _method_quality(ctx: PoolContext) -> pl.DataFrame:
    from curation_assets.numeric.metrics.concreteness import concreteness_report
    from curation_assets.numeric.separation import roc_auc

    rows: list[dict[str, Any]] = []

    def add(name: str, target: str, metrics: dict[str, float], n: int) -> None:
        rows.extend(
            {"method": name, "target": target, "metric": key, "value": value, "n": n} for key, value in metrics.items()
        )

    judged = {"icc": ("signals/icc", "value")}
    if ctx.distils:
        judged |= {
            **{name: (f"teachers/{name}", "value") for name in teacher_names(ctx)},
            **{f"{name}, standardised": (TEACHER_SCORES, name) for name in teacher_names(ctx)},
            "fused teachers": (TARGETS, "value"),
        }
    seen = set(ctx.store.scan(TARGETS).collect()["sample_id"]) if ctx.distils else set()
    for name, (table, column) in judged.items():
        frame = with_truth(ctx, table, column).filter(pl.col("concreteness").is_not_null())
        if name == "icc":  # the student is judged on captions that it was not distilled from
            frame = frame.filter(~pl.col("sample_id").is_in(list(seen)))
        correlations = concreteness_report(frame["value"].to_numpy(), frame["concreteness"].to_numpy()).agreement
        metrics = {"pearson": correlations.pearson, "spearman": correlations.spearman, "kendall": correlations.kendall}
        add(name, "planted concreteness", metrics, correlations.n)
    for name, (table, column) in _valued_tables(ctx).items():
        frame = with_truth(ctx, table, column).filter(pl.col("is_aligned").is_not_null())
        frame = frame.filter((pl.col("kind") == "clean") | ~pl.col("is_aligned"))
        auc = roc_auc(frame["value"].to_numpy(), frame["is_aligned"].to_numpy())
        add(name, "clean against mismatched", {"auc": auc}, frame.height)
    return pl.DataFrame(rows)


def _separation(ctx: PoolContext) -> pl.DataFrame:
    from curation_assets.numeric.metrics.separation import verdict_of
    from curation_assets.numeric.separation import auc_interval, roc_auc

    kinds_of = made_for(ctx)
    rows = []
    for name, (table, column) in _separating_tables(ctx).items():
        frame = with_truth(ctx, table, column, with_gaps=True)
        clean = frame.filter(pl.col("kind") == "clean")["value"].drop_nulls().to_numpy()
        for (kind,), group in sorted(frame.group_by("kind")):
            if kind == "clean":
                continue
            values = group["value"].drop_nulls().to_numpy()
            row = {"method": name, "kind": kind, "auc": None, "low": None, "high": None, "verdict": None}
            row |= {"n": len(values), "n_clean": len(clean), "without_value": group.height - len(values)}
            row |= {"is_made_for": kind in kinds_of.get(name, ())}
            if len(values) and len(clean):
                both = np.concatenate([clean, values])
                row["auc"] = auc = roc_auc(both, np.arange(len(both)) < len(clean))
                row["low"], row["high"] = auc_interval(auc, len(clean), len(values))
                row["verdict"] = verdict_of(auc) if row["is_made_for"] else None
            rows.append(row)
    numbers = dict.fromkeys(("auc", "low", "high"), pl.Float64)
    return pl.DataFrame(rows, schema_overrides={**numbers, "verdict": pl.String})


def _text_in_images(ctx: PoolContext) -> pl.DataFrame:
    """Rows for the whole pool ('all') and for every policy's subset. A sample counts once."""
    subsets = {"all": pl.lit(True)} | {policy.name: pl.col(KEPT_BY + policy.name) for policy in policies_of(ctx)}
    counts = dict.fromkeys(subsets, np.zeros(3, dtype=np.int64))  # with a value, with text, dropped
    for part in with_policies(ctx, "signals/text_spotting", ["value", "text_count"]):
        spotted = part.drop_nulls("value").sort("value", "text_count").unique("sample_id", keep="first")
        for name, is_in in subsets.items():
            counted = spotted.filter(is_in).select(
                pl.len().cast(pl.Int64), (pl.col("text_count") > 0).sum(), (pl.col("value") == 0).sum()
            )
            counts[name] = counts[name] + counted.row(0)
    rows = []
    for name, (n, with_text, dropped) in counts.items():
        rows.append(
            {
                "subset": name,
                "n": n,
                "with_text_share": with_text / n if n else None,
                "text_spotting_drop_share": dropped / n if n else None,
            }
        )
    shares = {"with_text_share": pl.Float64, "text_spotting_drop_share": pl.Float64}
    return pl.DataFrame(rows, schema_overrides=shares)


def write_comparison(settings: Settings, pool_name: str, folder: Path) -> None:
    """The page with two policies side by side, compare.html in `folder`."""
    from curation_assets.outputs.report.compare import write_compare_page

    write_compare_page(PoolContext.open(settings, pool_name), folder / "compare.html")


def _report(ctx: PoolContext, folder: Path) -> None:
    from curation_assets.evaluation.report_section import section_html
    from curation_assets.outputs.report.report import write_report

    with beside(ctx.settings, write_comparison, ctx.settings, ctx.pool.name, folder):
        write_report(ctx, folder / "report.html", section_html(ctx))
