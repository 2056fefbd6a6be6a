"""Figures of the report as PNG data URIs. One look throughout."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import numpy as np
import polars as pl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from curation_assets.core.visible import visible
from curation_assets.flow.conservation import rows_by_state

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#2f6fde", "#e8833a", "#3a9d5d", "#d64545", "#8a5cd6", "#2a9d9d"
STATE_COLOURS = {"kept": GREEN, "dropped": ORANGE, "failed": RED}
SERIES = (BLUE, ORANGE, GREEN, PURPLE, TEAL, RED)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LABEL_LETTERS = 28  # of a name beside a bar
DASHES = ("-", "--", "-.", ":")

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "font.size": 9,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.color": INK,
    }
)


def data_uri(figure: Figure) -> str:
    """PNG of a figure as `data:image/png;base64,…`; the figure is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def states_bar(frame: pl.DataFrame | pl.LazyFrame) -> str:
    """Rows by terminal state and reason, most frequent first."""
    counted = rows_by_state(frame).reverse()  # the last bar is on top
    figure, axes = plt.subplots(figsize=(5.6, 0.5 + 0.26 * counted.height))
    labels = [visible(f"{status} {reason}".strip()) for status, reason, _ in counted.iter_rows()]
    axes.barh(labels, counted["len"], color=[STATE_COLOURS.get(status, MUTED) for status in counted["status"]])
    for index, count in enumerate(counted["len"]):
        axes.text(count, index, f" {count:,}", va="center", fontsize=8)
    axes.set_xlabel("rows")
    axes.grid(axis="y", visible=False)
    return data_uri(figure)


def _nth(kinds: Sequence[str], number: int) -> str:
    """Colour, marker or dashes of the `number`th series: they begin again, each at another number, so that no series is
    left out and the first 42 differ."""
    return kinds[number % len(kinds)]


def counts_figure(names: Sequence[str], series: Mapping[str, Sequence[int]]) -> Figure:
    """Bars of the first series by name, the first name on top; marks of the others over them."""
    (first, bars), *others = series.items()
    figure, axes = plt.subplots(figsize=(5.2, 0.6 + 0.26 * len(names)))
    places = range(len(names))
    axes.barh(places, bars, color=GRID, label=first)
    for number, (name, counted) in enumerate(others):
        axes.plot(counted, places, _nth(MARKERS, number), color=_nth(SERIES, number), markersize=4, label=name)
    names = [visible(name) for name in names]
    axes.set_yticks(places, [name if len(name) <= LABEL_LETTERS else f"{name[: LABEL_LETTERS - 1]}…" for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("rows")
    axes.grid(axis="y", visible=False)
    if others:  # beside the bars, of which none is hidden then, however many series there are
        axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def histogram_figure(columns: Mapping[str, pl.Series], xlabel: str, bins: int = 40) -> Figure:
    """Overlaid histograms, one per named column; nulls are left out."""
    figure, axes = plt.subplots(figsize=(4.4, 2.3))
    arrays = {name: column.drop_nulls().drop_nans().to_numpy() for name, column in columns.items()}
    filled = [array for array in arrays.values() if len(array)]
    if filled:
        edges = np.histogram_bin_edges(np.concatenate(filled), bins=bins)
        for number, (name, array) in enumerate(arrays.items()):
            label = f"{name} ({len(array):,})"
            # one outline, not a patch per bin: several times faster to draw
            colour = _nth(SERIES, number)
            axes.hist(array, bins=edges.tolist(), histtype="stepfilled", alpha=0.6, color=colour, label=label)
        if len(arrays) > 1:
            axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlabel(xlabel)
    axes.set_ylabel("samples")
    return figure


def verdicts_histogram(frame: pl.DataFrame) -> str:
    """Distribution of the ranked value, kept and dropped apart, with the threshold."""
    parts = {state: frame.filter(pl.col("verdict") == state)["value"] for state in ("kept", "dropped")}
    figure = histogram_figure(parts, "value")
    axes = figure.axes[0]
    thresholds = frame["threshold"].drop_nulls().unique() if "threshold" in frame.columns else pl.Series([])
    if len(thresholds) == 1:
        axes.axvline(float(thresholds[0]), color=INK, linewidth=1, linestyle="--")
    return data_uri(figure)


def plane_figure(
    scores: pl.DataFrame, ratings: np.ndarray, weights: tuple[float, float, float], whose: str = ""
) -> Figure:
    """The plane of two teachers' scores of the rated captions, coloured by rating.

    `whose`: ratings, human or planted.
    `scores`: N rows, two columns named for the teachers. `weights`: of both and the intercept, for the line where
    the fused score is .5.
    """
    figure, axes = plt.subplots(figsize=(4.4, 3.4))
    across, up = scores.to_numpy().T  # (N,) each
    points = axes.scatter(across, up, c=ratings, cmap="viridis", s=16, alpha=0.85, linewidths=0)
    figure.colorbar(points, label=f"{whose} rating (0–3)".strip())
    a, b, c = weights
    if b != 0:
        along = np.linspace(0, 1, 50)
        height = -(a * along + c) / b
        inside = (height >= 0) & (height <= 1)
        axes.plot(along[inside], height[inside], color=RED, linewidth=1.4, label="fused score = .5")
        axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    first, second = (f"{name.upper()} score" for name in scores.columns)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=first, ylabel=second)
    return figure


def agreement_figure(table: pl.DataFrame) -> Figure:
    """Spearman correlation with the ratings and its interval, per benchmark and scorer: `distilled/agreement`."""
    rows = table.drop_nulls("spearman")
    labels = [
        f"{scorer} ({similarity.removesuffix('_similarity')})" if similarity else scorer
        for scorer, similarity in rows.select("scorer", "similarity").iter_rows()
    ]
    labels = [
        f"{label}, scaled" if scaled else label for label, scaled in zip(labels, rows["standardised"], strict=True)
    ]
    low, high = (rows[name].fill_null(rows["spearman"]).to_numpy() for name in ("spearman_low", "spearman_high"))
    middle = rows["spearman"].to_numpy()
    around = np.abs([middle - low, high - middle])  # (2, K)
    positions = np.arange(rows.height)[::-1]  # first row on top
    figure, axes = plt.subplots(figsize=(5.6, 0.8 + 0.24 * rows.height))
    for number, benchmark in enumerate(rows["benchmark"].unique(maintain_order=True)):
        here = (rows["benchmark"] == benchmark).to_numpy()
        marker, colour = _nth(MARKERS, number), _nth(SERIES, number)
        axes.errorbar(
            middle[here], positions[here], xerr=around[:, here], fmt=marker, ms=4, color=colour, label=benchmark
        )
    axes.set_yticks(positions, labels)
    axes.set_xlabel("Spearman correlation with the ratings, 95 % interval")
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def overlap_figure(names: Sequence[str], iou: np.ndarray) -> Figure:
    """Heat map of intersection over union between subsets. (K, K) in [0, 1]."""
    side = 1.4 + 0.55 * len(names)
    figure, axes = plt.subplots(figsize=(side, side))
    axes.imshow(iou, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    for row in range(len(names)):
        for column in range(len(names)):
            shade = "white" if iou[row, column] > 0.6 else INK
            axes.text(column, row, f"{iou[row, column]:.2f}", ha="center", va="center", fontsize=7, color=shade)
    return figure


def auc_colour(auc: float | None) -> str:
    """CSS colour of a cell of a heat table: white at .5, green towards 1, red towards 0; grey where there is none."""
    if auc is None:
        return GRID
    red, green, blue = (58, 157, 93) if auc >= 0.5 else (214, 69, 69)
    return f"rgba({red}, {green}, {blue}, {0.75 * min(1.0, abs(auc - 0.5) * 2):.2f})"


class Point(NamedTuple):
    """A metric of a training set at one share of the pool; low and high are None where one run has no spread."""

    share: float
    mean: float
    low: float | None
    high: float | None


def metric_bars(table: pl.DataFrame, metric: str, label: str) -> Figure:
    """Mean of a downstream metric by policy, with a dot per run where a policy has several.

    Columns: policy, seed, metric, value.
    """
    rows = table.filter(pl.col("metric") == metric)
    means = rows.group_by("policy").agg(pl.col("value").mean()).sort("value", "policy")
    figure, axes = plt.subplots(figsize=(4.0, 0.6 + 0.3 * means.height))
    axes.barh(means["policy"], means["value"], color=BLUE, alpha=0.75)
    index_of = {policy: index for index, policy in enumerate(means["policy"])}
    several = rows.filter(pl.len().over("policy") > 1)  # a single dot lies on the end of its bar and says nothing
    axes.scatter(several["value"], [index_of[policy] for policy in several["policy"]], color=INK, s=10, zorder=3)
    axes.set_xlabel(label)
    axes.grid(axis="y", visible=False)
    return figure


def curves_figure(lines: Mapping[str, Sequence[Point]], label: str, *, band: str) -> Figure:
    """A metric against the share of the pool, a line per training set; the set `band` is drawn as its interval.

    Lines differ in marker and dashes too, for readers and printers without colours.
    """
    others = sorted((name for name in lines if name != band), key=lambda name: -lines[name][-1].mean)  # as on the right
    columns = 3
    legend_height = 0.19 * -(-(len(others) + 1) // columns)
    figure, axes = plt.subplots(figsize=(5.4, 2.9 + legend_height))
    for number, name in enumerate(others):
        shares, means = [point.share for point in lines[name]], [point.mean for point in lines[name]]
        colour, marker, dashes = (_nth(kinds, number) for kinds in (SERIES, MARKERS, DASHES))
        axes.plot(shares, means, color=colour, marker=marker, linestyle=dashes, ms=4, linewidth=1.2, label=name)
    if band in lines:
        points = lines[band]
        shares = [point.share for point in points]
        axes.plot(shares, [point.mean for point in points], color=INK, linewidth=2, marker=".", label=band)
        low, high = ([getattr(point, side) for point in points] for side in ("low", "high"))
        if len(points) > 1 and None not in low and None not in high:
            axes.fill_between(shares, low, high, color=MUTED, alpha=0.3, linewidth=0, label=f"{band}, 95 % interval")
    axes.set_xlabel("share of the pool")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=6.5, ncols=columns, loc="upper center", bbox_to_anchor=(0.46, -0.17))
    return figure
