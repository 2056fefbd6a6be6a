"""Means of repeated measurements with t intervals, and what many comparisons at once leave of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts load on first use

CONFIDENCE = 0.95
NO_SPREAD = 1e-12  # relative; a smaller standard deviation is rounding

Runs = Mapping[str, Mapping[int, float]]  # pool → seed → value


@dataclass(frozen=True)
class Estimate:
    """A mean over independent units with its spread; in the unit of the values."""

    mean: float
    sd: float | None  # between units, ddof 1; None for one unit
    low: float | None  # of the 95 % t interval; None for one unit, and where all units are equal
    high: float | None
    p: float | None  # of the two-sided t test against 0; None where there is no interval
    units: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the interval holds no 0; None without an interval."""
        return None if self.low is None or self.high is None else not self.low <= 0 <= self.high


def estimate(values: np.ndarray) -> Estimate:
    """Mean and 95 % t interval of (U,) independent units: mean ± t(.975, U − 1) · sd / √U. Student 1908.

    Units that are all equal give no interval: two equal recalls of 100 images are no proof that a third would be equal.
    Raises ValueError for no unit or one that is not finite.
    """
    units = np.asarray(values, dtype=np.float64)
    if units.ndim != 1 or not len(units) or not np.isfinite(units).all():
        raise ValueError(f"expected (U,) finite values, at least one, got {units}")
    mean, count = float(units.mean()), len(units)
    if count == 1:
        return Estimate(mean, None, None, None, None, 1)
    sd = float(units.std(ddof=1))
    if sd <= NO_SPREAD * max(1.0, abs(mean)):
        return Estimate(mean, 0.0, None, None, None, count)
    error = sd / np.sqrt(count)
    half = float(scipy.special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(scipy.special.stdtr(count - 1, -abs(mean) / error))
    return Estimate(mean, sd, mean - half, mean + half, p, count)


def independent_units(runs: Runs) -> np.ndarray:
    """Runs of one training set → (U,) values that are independent of each other.

    Several pools: the mean over seeds of each, since runs on one pool share its samples; the spread of these means
    holds the variance of pool, draw and seed. One pool: its seeds.
    """
    by_pool = [list(seeds.values()) for _, seeds in sorted(runs.items()) if seeds]
    if len(by_pool) == 1:
        return np.array(by_pool[0])
    return np.array([np.mean(values) for values in by_pool])


def paired_differences(runs: Runs, reference: Runs) -> dict[str, dict[int, float]]:
    """Value minus the reference's of the same pool and seed; pools without a common seed are left out."""
    shared = {
        pool: {seed: value - reference[pool][seed] for seed, value in seeds.items() if seed in reference[pool]}
        for pool, seeds in runs.items()
        if pool in reference
    }
    return {pool: seeds for pool, seeds in shared.items() if seeds}


def holm(p_values: np.ndarray) -> np.ndarray:
    """(C,) p values → (C,) adjusted ones: the i-th smallest times C − i + 1, never falling, at most 1. Holm 1979.

    Those ≤ .05 hold all together: the probability of one false among them is at most 5 %.
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def data_set_scores(metrics: np.ndarray) -> np.ndarray:
    """(S training sets, M metrics, higher is better) → (S,) in [0, 1]: the mean of each column's min–max values.

    Each column is scaled over all rows, the set without pre-training included; averaging per task first would be wrong
    (formulas.md §8.4). A constant column counts .5. Raises ValueError for gaps or fewer than two sets.
    """
    table = np.asarray(metrics, dtype=np.float64)
    if table.ndim != 2 or len(table) < 2 or not np.isfinite(table).all():
        raise ValueError(f"expected a table of at least two training sets without gaps, got shape {table.shape}")
    low, span = table.min(axis=0), np.ptp(table, axis=0)
    varies = span > 1e-12 * np.abs(table).max(axis=0)  # less is rounding
    scaled = np.divide(table - low, span, out=np.full_like(table, 0.5), where=varies)
    return scaled.mean(axis=1)
