"""Agreement of a number with ratings: Pearson, Spearman and Kendall tau-b, with bootstrap intervals."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau, rankdata


@dataclass(frozen=True)
class Agreement:
    """Three correlations in [-1, 1] over `n` pairs, with bootstrap percentile intervals (low, high)."""

    pearson: float
    spearman: float
    kendall: float  # tau-b: the ratings have many ties (METHODS §1.9)
    n: int
    n_incomplete: int  # pairs left out because a side is NaN
    intervals: dict[str, tuple[float, float]]  # empty without resampling


def correlations(values: np.ndarray, ratings: np.ndarray) -> tuple[float, float, float]:
    """Pearson, Spearman, Kendall tau-b of two (N,) arrays without NaN. All NaN where a side is constant."""
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(ratings) == 0:
        return (np.nan, np.nan, np.nan)
    return (
        float(np.corrcoef(values, ratings)[0, 1]),
        float(np.corrcoef(rankdata(values), rankdata(ratings))[0, 1]),
        float(kendalltau(values, ratings, variant="b").statistic),
    )


def agreement(
    values: np.ndarray,
    ratings: np.ndarray,
    rng: np.random.Generator | None = None,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
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
        draws = [correlations(x[rows], y[rows]) for rows in rng.integers(0, len(x), size=(resamples, len(x)))]
        tail = (1 - confidence) / 2
        # A resample may be constant (few pairs, many ties): it has no correlation and is left out.
        bounds = np.nanquantile(np.array(draws), [tail, 1 - tail], axis=0)  # (2, 3)
        intervals = {
            name: (float(bounds[0, column]), float(bounds[1, column]))
            for column, name in enumerate(("pearson", "spearman", "kendall"))
        }
    return Agreement(*point, n=len(x), n_incomplete=int((~is_complete).sum()), intervals=intervals)
