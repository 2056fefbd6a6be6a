"""python -m benchmarks.papers plot: the papers' figures from a pool's stored values, as PNG."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.papers.tables import (
    MAIN_METRICS,
    RowsMissingError,
    Sources,
    lacks_values,
    measures_and_scores,
)
from benchmarks.papers.text_methods import RAO_METHODS
from curation_assets.cli.common import HomeOption, notice, settings_from
from curation_assets.core.validation import check_known
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.numeric.agreement import spearman
from curation_assets.outputs.report.pictures import MARKERS, SERIES
from curation_assets.stages.filtered.tables import KEPT_BY, with_policies
from curation_assets.stores.atomic import check_new, writing_new

BINS = 40


def plot(
    figure: Annotated[str, typer.Argument(metavar="FIGURE", help="fractions, histograms or correlations.")],
    pools: Annotated[list[str], typer.Argument(metavar="POOL...")],
    out: Annotated[Path, typer.Option("--out", help="A new .png file.")],
    home: HomeOption = None,
) -> None:
    """Draw a figure of the papers for these pools.

    fractions: a metric by the share kept (SIEVE, Figure 4). histograms: quality and relatedness of the pool and its
    subsets (Rao et al.). correlations: a measure's mean over each training set against Score (Rao et al.).
    """
    check_known("plot", "figure", [figure], FIGURES)
    check_new(out)
    settings = settings_from(home)
    drawn = FIGURES[figure](Sources([PoolContext.open(settings, name) for name in pools]))
    with writing_new(out) as temporary:
        drawn.savefig(temporary, format="png", bbox_inches="tight", dpi=150)
    plt.close(drawn)
    notice(f"{figure} in {out}")


def fractions(sources: Sources) -> Figure:
    """A panel per metric: the mean of each training set by the share kept, with its 95 % interval."""
    table = sources.of_trainer(None, MAIN_METRICS).filter(pl.col("size").is_not_null())
    if table["size"].n_unique() < 2:
        raise RowsMissingError(
            "accuracy by share takes models at two shares at least; set `downstream_sizes`, such as [.1, .2, .5], "
            "under `options` of the pool, then curate run"
        )
    panels = table.partition_by("trainer", "metric", maintain_order=True)
    drawn, axes = _panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for number, of_set in enumerate(panel.sort("size").partition_by("policy", "kind", maintain_order=True)):
            # without an interval (one run) the bar has no length
            means = of_set["mean"].to_numpy()
            low, high = (of_set[name].fill_null(of_set["mean"]).to_numpy() for name in ("low", "high"))
            axis.errorbar(
                of_set["size"].to_numpy(), means, yerr=np.stack([means - low, high - means]),
                color=SERIES[number % len(SERIES)], marker=MARKERS[number % len(MARKERS)], capsize=2,
                label=of_set["policy"][0],
            )  # fmt: skip
        axis.set(title=f"{panel['trainer'][0]}: {panel['metric'][0]}", xlabel="share of the pool kept")
    axes[0].legend(fontsize=7)
    return drawn


def histograms(sources: Sources) -> Figure:
    """A panel per pool and measure: its distribution over the pool and over each subset, as shares."""
    panels: list[tuple[str, Mapping[str, np.ndarray]]] = []
    missing = []
    for ctx in sources.pools:
        for name in RAO_METHODS:
            if ctx.store.partitions(f"signals/{name}"):
                panels.append((f"{ctx.pool.name}: {name}", values_by_subset(ctx, name)))
            else:
                missing.append(lacks_values(ctx, f"signals.{name}", ()))
    if not panels:
        raise RowsMissingError("; ".join(missing))
    for text in missing:
        notice(text)
    drawn, axes = _panels(len(panels))
    for axis, (title, by_subset) in zip(axes, panels, strict=True):
        edges = np.histogram_bin_edges(by_subset["pool"], BINS)
        for number, (subset, values) in enumerate(by_subset.items()):
            counts, _ = np.histogram(values, edges)
            axis.stairs(
                counts / max(1, len(values)), edges, color=SERIES[number % len(SERIES)],
                label=f"{subset} ({len(values):,})",
            )  # fmt: skip
        axis.set(title=title, ylabel="share of the samples")
        axis.legend(fontsize=7)
    return drawn


def values_by_subset(ctx: PoolContext, name: str) -> dict[str, np.ndarray]:
    """Data set (the pool, each subset) → the values of its samples that have one."""
    subsets = {"pool": pl.lit(True)} | {policy.name: pl.col(KEPT_BY + policy.name) for policy in policies_of(ctx)}
    parts: dict[str, list[np.ndarray]] = {subset: [] for subset in subsets}
    for part in with_policies(ctx, f"signals/{name}", ["value"]):
        valued = part.drop_nulls("value")
        for subset, is_in in subsets.items():
            parts[subset].append(valued.filter(is_in)["value"].to_numpy())
    return {subset: np.concatenate([np.zeros(0), *of]) for subset, of in parts.items()}


def correlations(sources: Sources) -> Figure:
    """A panel per measure: its mean over each training set against Score, with Spearman's correlation."""
    points = measures_and_scores(sources)
    if not points:
        raise RowsMissingError("a correlation takes three training sets of one size with a Score; train more policies")
    drawn, axes = _panels(len(points))
    for axis, ((measure, size), by_set) in zip(axes, points.items(), strict=True):
        means, scores = (np.array(side) for side in zip(*by_set.values(), strict=True))
        axis.scatter(means, scores, color=SERIES[0], s=18)
        for name, (mean, score) in by_set.items():
            axis.annotate(name, (mean, score), fontsize=6, xytext=(3, 3), textcoords="offset points")
        share = "" if size is None else f" at {size:g}"
        axis.set(title=f"{measure}{share}: ρ = {spearman(means, scores):.2f}", xlabel="mean", ylabel="Score")
    return drawn


def _panels(count: int) -> tuple[Figure, Sequence[plt.Axes]]:
    columns = min(3, count)
    drawn, axes = plt.subplots(
        -(-count // columns), columns, figsize=(4.2 * columns, 3.2 * -(-count // columns)), squeeze=False
    )
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    drawn.tight_layout(pad=2.5)
    return drawn, list(axes.flat[:count])


FIGURES: Mapping[str, Callable[[Sources], Figure]] = {
    "fractions": fractions,
    "histograms": histograms,
    "correlations": correlations,
}
