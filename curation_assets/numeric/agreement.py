"""Agreement of a number with ratings: Pearson, Spearman and Kendall tau-b, with bootstrap intervals."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts load on first use: scipy.stats takes most of a second

NAMES = ("pearson", "spearman", "kendall")
MATRIX_LIMIT = 1500  # pairs up to which resamples are correlated all at once; an (N, N) float64 matrix is 18 MB


@dataclass(frozen=True)
class Agreement:
    """Three correlations in [-1, 1] over `n` pairs, with bootstrap percentile intervals (low, high)."""

    pearson: float
    spearman: float
    kendall: float  # tau-b: the ratings have many ties (formulas.md §1.9)
    n: int
    n_incomplete: int  # pairs left out because a side is NaN
    intervals: dict[str, tuple[float, float]]  # empty without resampling


def spearman(values: np.ndarray, others: np.ndarray) -> float:
    """Spearman correlation of two (N,) arrays without NaN: [-1, 1], ties by mean rank; NaN where a side is constant."""
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(others) == 0:
        return float("nan")
    return float(np.corrcoef(scipy.stats.rankdata(values), scipy.stats.rankdata(others))[0, 1])


_TAIL = (1 - 0.95) / 2
TAILS = (_TAIL, 1 - _TAIL)  # of a 95 % interval


def correlations(values: np.ndarray, ratings: np.ndarray) -> tuple[float, float, float]:
    """Pearson, Spearman, Kendall tau-b of two (N,) arrays without NaN. All NaN where a side is constant."""
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(ratings) == 0:
        return (np.nan, np.nan, np.nan)
    return (
        float(np.corrcoef(values, ratings)[0, 1]),
        spearman(values, ratings),
        float(scipy.stats.kendalltau(values, ratings, variant="b").statistic),
    )


def agreement(
    values: np.ndarray,
    ratings: np.ndarray,
    rng: np.random.Generator | None = None,
    *,
    resamples: int = 1000,
) -> Agreement:
    """Agreement of values with ratings, (N,) and (N,). Pairs with a NaN are left out and counted.

    With `rng`, intervals are percentiles over `resamples` draws of the pairs with replacement; without, there are
    none. Raises ValueError for unequal shapes, fewer than 3 pairs, or a constant side (no correlation exists).
    """
    values, ratings = np.asarray(values, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    if values.shape != ratings.shape or values.ndim != 1:
        raise ValueError(f"expected values (N,) and ratings (N,), got {values.shape} and {ratings.shape}")
    is_complete = np.isfinite(values) & np.isfinite(ratings)
    x, y = values[is_complete], ratings[is_complete]
    if len(x) < 3:
        raise ValueError(f"agreement needs at least 3 complete pairs, got {len(x)} of {len(values)}")
    point = correlations(x, y)
    if np.isnan(point).any():
        constant = "values" if np.ptp(x) == 0 else "ratings"
        raise ValueError(f"the {constant} are all equal, so no correlation exists ({len(x)} pairs)")
    intervals: dict[str, tuple[float, float]] = {}
    if rng is not None:
        rows = rng.integers(0, len(x), size=(resamples, len(x)))  # (R, N)
        draws = _correlations_of_draws(x, y, rows) if len(x) <= MATRIX_LIMIT else _draw_by_draw(x, y, rows)  # (R, 3)
        # A resample may be constant (few pairs, many ties): it has no correlation and is left out.
        bounds = np.nanquantile(draws, TAILS, axis=0)  # (2, 3)
        intervals = {name: (float(bounds[0, column]), float(bounds[1, column])) for column, name in enumerate(NAMES)}
    return Agreement(*point, n=len(x), n_incomplete=int((~is_complete).sum()), intervals=intervals)


@dataclass(frozen=True)
class AgreementDifference:
    """How much better one number agrees with ratings than another on the same pairs: three differences in [-2, 2]."""

    pearson: float
    spearman: float
    kendall: float  # of the two tau-b
    n: int
    n_incomplete: int  # rows left out because one of the three is NaN
    intervals: dict[str, tuple[float, float]]  # bootstrap percentiles; an interval that holds 0 shows no difference


def agreement_difference(
    values: np.ndarray,
    others: np.ndarray,
    ratings: np.ndarray,
    rng: np.random.Generator,
    *,
    resamples: int = 1000,
) -> AgreementDifference:
    """Agreement of `values` minus that of `others`, (N,) each, with a paired bootstrap (Efron & Tibshirani 1993 §16).

    Every resample draws rows, and both sides are judged on the same rows: what makes one set of captions easy for both
    cancels out. Raises ValueError as `agreement` does.
    """
    values, others, ratings = (np.asarray(side, dtype=np.float64) for side in (values, others, ratings))
    if not values.shape == others.shape == ratings.shape:
        raise ValueError(f"expected three (N,), got {values.shape}, {others.shape} and {ratings.shape}")
    is_complete = np.isfinite(values) & np.isfinite(others) & np.isfinite(ratings)
    x, z, y = values[is_complete], others[is_complete], ratings[is_complete]
    first, second = agreement(x, y), agreement(z, y)  # refuses what has no correlation
    rows = rng.integers(0, len(y), size=(resamples, len(y)))  # (R, N)
    draws = _correlations_of_draws if len(y) <= MATRIX_LIMIT else _draw_by_draw
    bounds = np.nanquantile(draws(x, y, rows) - draws(z, y, rows), TAILS, axis=0)  # (2, 3)
    return AgreementDifference(
        pearson=first.pearson - second.pearson,
        spearman=first.spearman - second.spearman,
        kendall=first.kendall - second.kendall,
        n=len(y),
        n_incomplete=int((~is_complete).sum()),
        intervals={name: (float(bounds[0, i]), float(bounds[1, i])) for i, name in enumerate(NAMES)},
    )


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's score interval (95 %) of a share of n independent trials, in [0, 1]. Wilson 1927."""
    z = 1.959964
    if n < 1:
        raise ValueError(f"an interval of a share needs at least 1 trial, got {n}")
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float], n: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Percentile interval (95 %, 300 draws) of `statistic`, which gets (n,) drawn rows (Efron & Tibshirani 1993).

    Draws that have no value (ValueError or NaN: all alike) are left out; NaN, NaN where none has one.
    """
    values = []
    for _ in range(300):
        try:
            value = statistic(rng.integers(0, n, size=n))
        except ValueError:
            continue
        if np.isfinite(value):
            values.append(value)
    low, high = np.quantile(values, TAILS) if values else (np.nan, np.nan)
    return float(low), float(high)


def _draw_by_draw(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(N,), (N,), (R, N) drawn rows → (R, 3) correlations."""
    return np.array([correlations(x[drawn], y[drawn]) for drawn in rows])


def _correlations_of_draws(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The same as `_one_by_one` by matrix products: a draw is a count per pair, and all three are sums over counts."""
    counts = np.stack([np.bincount(drawn, minlength=len(x)) for drawn in rows]).astype(np.float64)  # (R, N)
    above = [np.sign(side[:, None] - side[None, :]) for side in (x, y)]  # each (N, N): 1 where row > column
    # mean rank inside a draw: those below, and half of those equal (itself included), plus ½
    ranks = [counts @ ((sign.T + 1) / 2) + 0.5 for sign in above]  # each (R, N)
    concordance, untied_x, untied_y = (
        ((counts @ sign) * counts).sum(axis=1) for sign in (above[0] * above[1], abs(above[0]), abs(above[1]))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        kendall = concordance / np.sqrt(untied_x * untied_y)
    draws = np.stack([_weighted_pearson(x, y, counts), _weighted_pearson(ranks[0], ranks[1], counts), kendall], axis=1)
    draws[(untied_x == 0) | (untied_y == 0)] = np.nan
    return draws


def _weighted_pearson(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(N,) or (R, N) values, (R, N) counts → (R,) Pearson of the counted pairs."""
    total = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
    with np.errstate(invalid="ignore", divide="ignore"):
        return (counts * x * y).sum(axis=1) / np.sqrt((counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1))
