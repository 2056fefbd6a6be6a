"""Drift of a score between two builds of its model: PSI, KS, rank correlation, keep rate, length slope, with limits.

Both builds score the same samples (a canary). A limit is what sampling noise alone could do with a canary of this
size: statistics of bootstrap draws from the reference build's own scores.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts load on first use: scipy.stats takes most of a second

PSI_BINS = 10
RESAMPLES = 500
CONFIDENCE = 0.99
#: Two builds that order the samples less alike than this are two methods: their cuts cannot be compared.
MIN_RANK_CORRELATION = 0.95


@dataclass(frozen=True)
class DriftStatistic:
    """One number and the limits that it should lie within."""

    name: str
    value: float  # NaN where it is not defined
    low: float  # -inf: no lower limit
    high: float

    @property
    def is_within(self) -> bool:
        """False outside the limits, and where the value is not defined."""
        return bool(self.low <= self.value <= self.high)


def population_stability_index(reference: np.ndarray, current: np.ndarray, bins: int = PSI_BINS) -> float:
    """PSI = Σ (q − p) ln(q / p) over quantile bins of `reference`. (N,), (M,) without NaN → [0, ∞).

    Half a sample is added to every bin, so that an empty one counts finitely. Below .1 is commonly called stable, above
    .25 a shift (Siddiqi 2006, credit scoring); small samples reach .1 by chance, which is what the limits are for.
    Raises ValueError for an empty side or fewer than 2 bins.
    """
    if bins < 2 or not len(reference) or not len(current):
        raise ValueError(f"PSI needs 2 bins and values on both sides, got {bins}, {len(reference)}, {len(current)}")
    edges = np.unique(np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1]))  # (B - 1,) inner edges
    shares = []
    for values in (reference, current):
        counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1) + 0.5
        shares.append(counts / counts.sum())
    p, q = shares
    return float(((q - p) * np.log(q / p)).sum())


def ks_distance(reference: np.ndarray, current: np.ndarray) -> float:
    """Largest distance of the two empirical distribution functions, [0, 1]. (N,), (M,) without NaN, not empty."""
    at = np.concatenate([reference, current])
    below = [np.searchsorted(np.sort(side), at, side="right") / len(side) for side in (reference, current)]
    return float(np.abs(below[0] - below[1]).max())  # scipy's ks_2samp spends milliseconds on a p-value


def rank_correlation(reference: np.ndarray, current: np.ndarray) -> float:
    """Spearman's ρ of paired scores, (N,), (N,) without NaN; NaN where a side is constant, 1 where both are equal."""
    if np.array_equal(reference, current):
        return 1.0
    if len(reference) < 2 or np.ptp(reference) == 0 or np.ptp(current) == 0:
        return float("nan")
    return float(np.corrcoef(scipy.stats.rankdata(reference), scipy.stats.rankdata(current))[0, 1])


def keep_rate(values: np.ndarray, threshold: float) -> float:
    """Share of (N,) values at or above `threshold`; NaN is never kept but counts as a sample."""
    return float((values >= threshold).sum() / len(values))


def length_slope(values: np.ndarray, lengths: np.ndarray) -> float:
    """Least-squares slope of values over caption lengths, in units of the value per word. 0 where lengths are equal."""
    centred = lengths - lengths.mean()
    spread = float((centred**2).sum())
    return float((centred * values).sum() / spread) if spread else 0.0


def drift_statistics(
    reference: np.ndarray,
    current: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
    *,
    fraction: float = 0.25,
    resamples: int = RESAMPLES,
) -> list[DriftStatistic]:
    """Compare two builds' scores of the same N samples, NaN where there is none.

    `lengths` (N,) in words. psi and ks: upper limits from pairs of draws from the reference. keep_rate (at the
    threshold that keeps `fraction` of the reference) and length_slope: limits on both sides. rank_correlation: its
    upper bootstrap end must reach MIN_RANK_CORRELATION. valued: as many samples have a value as before.
    Raises ValueError for unequal shapes, or fewer than 2 samples that both builds scored.
    """
    if not reference.shape == current.shape == lengths.shape or reference.ndim != 1:
        raise ValueError(
            f"expected three arrays (N,) of one length, got {reference.shape}, {current.shape}, {lengths.shape}"
        )
    old, new = ~np.isnan(reference), ~np.isnan(current)
    both = old & new
    if both.sum() < 2:
        raise ValueError(f"both builds must have scored 2 samples at least, got {int(both.sum())} of {len(both)}")
    r, c, words = reference[both], current[both], lengths[both].astype(np.float64)
    threshold = float(np.quantile(reference[old], 1 - fraction, method="higher"))
    tail = (1 - CONFIDENCE) / 2

    def draws(statistic: Callable[[np.ndarray], float]) -> np.ndarray:
        return np.array([statistic(rng.integers(len(r), size=len(r))) for _ in range(resamples)])

    def pairs(statistic: Callable[[np.ndarray, np.ndarray], float]) -> float:
        drawn = draws(lambda rows: statistic(r[rows], r[rng.integers(len(r), size=len(r))]))
        return float(np.quantile(drawn, CONFIDENCE))

    def two_sided(drawn: np.ndarray) -> tuple[float, float]:
        low, high = np.quantile(drawn, [tail, 1 - tail])
        return float(low), float(high)

    correlation = rank_correlation(r, c)
    noise = 0.0  # how far above the observed correlation its upper bootstrap end lies
    if np.isfinite(correlation):
        resampled = draws(lambda rows: rank_correlation(r[rows], c[rows]))
        noise = max(0.0, float(np.nanquantile(resampled, 1 - tail)) - correlation)
    kept = draws(lambda rows: keep_rate(r[rows], threshold))
    return [
        DriftStatistic("psi", population_stability_index(r, c), 0.0, pairs(population_stability_index)),
        DriftStatistic("ks", ks_distance(r, c), 0.0, pairs(ks_distance)),
        # Below the floor only when sampling noise cannot explain it.
        DriftStatistic("rank_correlation", correlation, MIN_RANK_CORRELATION - noise, 1.0),
        DriftStatistic("keep_rate", keep_rate(c, threshold), *two_sided(kept)),
        DriftStatistic(
            "length_slope",
            length_slope(c, words),
            *two_sided(draws(lambda rows: length_slope(r[rows], words[rows]))),
        ),
        DriftStatistic("valued", float(new.mean()), float(old.mean()), 1.0),
    ]
