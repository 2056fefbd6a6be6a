"""Alternative texts: what an image of the report shows, in a sentence, for readers who do not see it."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from curation_assets.flow.conservation import rows_by_state

MAX_LETTERS = 120  # of a caption that stands for its image
SHOWN_LETTERS = 200  # of a caption that is shown
SHOWN_GROUPS = 6  # a plot with more has the largest of them in its sentence


def caption_text(caption: str | None) -> str:
    """A caption as the text of its image, cut at MAX_LETTERS."""
    return clamped(caption, MAX_LETTERS) or "image without caption"


def clamped(text: str | None, letters: int = SHOWN_LETTERS) -> str:
    """A text on one line, cut at so many letters: a page holds hundreds, and one of them may be a whole book."""
    text = " ".join((text or "").split())
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def states_text(samples: pl.DataFrame | pl.LazyFrame) -> str:
    """Text of the bars of rows by state and reason. Columns: status, reason."""
    counted = rows_by_state(samples)
    groups = [f"{count:,} {status}{f' ({reason})' if reason else ''}" for status, reason, count in counted.iter_rows()]
    return f"Bars of {counted['len'].sum():,} rows by state and reason: {_first(groups)}."


def distribution_text(name: str, values: pl.Series) -> str:
    """Text of a histogram; like the histogram, it leaves out null and NaN."""
    values = values.cast(pl.Float64).drop_nulls().drop_nans()
    if values.is_empty():
        return f"Histogram of {name}: no value is a number."
    low, first, middle, third, high = (_short(values.quantile(share)) for share in (0, 0.25, 0.5, 0.75, 1))
    return (
        f"Histogram of {values.len():,} values of {name}, from {low} to {high}: "
        f"median {middle}, half of them between {first} and {third}."
    )


def verdicts_text(policy: str, verdicts: pl.DataFrame) -> str:
    """Text of the histogram of kept and dropped values. Columns: verdict, value, threshold."""
    parts = []
    for state in ("kept", "dropped"):
        values = verdicts.filter(pl.col("verdict") == state)["value"].drop_nulls().drop_nans()
        median = f" (median {_short(values.median())})" if values.len() else ""
        parts.append(f"{values.len():,} {state}{median}")
    thresholds = verdicts["threshold"].drop_nulls().unique() if "threshold" in verdicts.columns else pl.Series([])
    cut = f"; the cut is at {_short(thresholds[0])}" if len(thresholds) == 1 else ""
    return f"Histogram of the values by which {policy} ranks: {', '.join(parts)}{cut}."


def plane_text(scores: pl.DataFrame, ratings: np.ndarray, whose: str) -> str:
    """Text of the plane of two teachers' scores (N, 2), coloured by rating. `whose`: human or planted."""
    first, second = (name.upper() for name in scores.columns)
    medians = " and ".join(_short(scores[name].median()) for name in scores.columns)
    return (
        f"{scores.height:,} rated captions by their scores of {first} and {second} (medians {medians}), coloured by "
        f"{whose} rating (median {_short(float(np.median(ratings))) if len(ratings) else 'none'} of 0 to 3), with the "
        "line where the fused score is one half."
    )


def agreement_text(table: pl.DataFrame) -> str:
    """Text of the Spearman correlations with ratings. Columns: benchmark, scorer, spearman."""
    rows = table.drop_nulls("spearman").sort("spearman", descending=True)
    if rows.is_empty():
        return "Spearman correlation with the ratings: no scorer has a value."
    best, worst = rows.row(0, named=True), rows.row(-1, named=True)
    return (
        f"Spearman correlation with the ratings of {rows.height} scorers, with 95 % intervals: from "
        f"{best['spearman']:.2f} ({best['scorer']} on {best['benchmark']}) to {worst['spearman']:.2f} "
        f"({worst['scorer']} on {worst['benchmark']}). The table beside it has the figures."
    )


def overlaps_text(names: Sequence[str], iou: np.ndarray) -> str:
    """Text of the heat map of intersection over union. `iou`: (K, K)."""
    if len(names) < 2:
        return f"Overlap of the subsets: {', '.join(names)} is the only one."
    pairs = [(float(iou[i, j]), names[i], names[j]) for i in range(len(names)) for j in range(i)]
    (low, *least), (high, *most) = min(pairs), max(pairs)
    return (
        f"Intersection over union of {len(names)} subsets, pair by pair: median "
        f"{np.median([value for value, *_ in pairs]):.2f}, most {high:.2f} ({' and '.join(most)}), "
        f"least {low:.2f} ({' and '.join(least)})."
    )


def metric_text(label: str, means: Sequence[tuple[str, float]], at: str) -> str:
    """Text of a plot of a metric, or its curves. `means`: (training set, mean). `at`: the size."""
    ranked = sorted(means, key=lambda one: -one[1])
    values = [value for _, value in ranked]
    random = next((f", random {_short(value)}" for name, value in ranked if name == "random"), "")
    return (
        f"{label} of {len(ranked)} training sets {at}: best {ranked[0][0]} {_short(values[0])}, "
        f"median {_short(float(np.median(values)))}, last {ranked[-1][0]} {_short(values[-1])}{random}. "
        "The tables have all figures."
    )


def _first(groups: Sequence[str]) -> str:
    more = len(groups) - SHOWN_GROUPS
    return ", ".join([*groups[:SHOWN_GROUPS], *([f"and {more} other reasons"] if more > 0 else [])])


def _short(value: object) -> str:
    return f"{float(str(value)):.3g}"
