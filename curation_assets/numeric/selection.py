"""Selection: which samples of a ranking are kept. Fraction 1 keeps all, 0 is refused, equal scores go by sample_id."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from curation_assets.numeric.identity import unit_interval_of


@dataclass(frozen=True)
class Selection:
    """Verdict per sample of a ranking. A sample without a value (NaN) has rank 0 and is never kept."""

    is_kept: np.ndarray  # (N,) bool
    rank: np.ndarray  # (N,) int64; 1 is best, 0 means no value
    margin: np.ndarray  # (N,) float64: value − threshold, NaN without a value
    threshold: float  # smallest kept value; +inf when nothing is kept
    boundary_id: str | None  # at the threshold, samples up to this sample_id are kept; None: all of them

    @property
    def kept_count(self) -> int:
        """Number of kept samples."""
        return int(self.is_kept.sum())


def share_count(n: int, fraction: float) -> int:
    """`fraction` of `n` samples, rounded half up, the fraction read as the decimal that was written.

    0.285 of 100 is 29, although 0.285 * 100 < 28.5 in binary. Raises ValueError unless fraction is in (0, 1].
    """
    check_fraction(fraction)
    return int((Decimal(n) * Decimal(repr(float(fraction)))).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def check_fraction(fraction: float) -> None:
    """Raise ValueError unless fraction is in (0, 1]."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}; use threshold= to cut by value")


def select_top_fraction(values: np.ndarray, sample_ids: Sequence[str], fraction: float) -> Selection:
    """Keep the best round-half-up(N · fraction) samples, exactly. (N,) values, higher is better.

    N counts samples without a value (NaN) too: failures do not make the subset smaller until values run out.
    Raises ValueError unless fraction is in (0, 1] and the sample_ids are unique.
    """
    return select_top_count(values, sample_ids, share_count(len(sample_ids), fraction))


def select_top_count(values: np.ndarray, sample_ids: Sequence[str], count: int) -> Selection:
    """Keep the best `count` samples, or all that have a value if they are fewer; ties by sample_id, lowest first."""
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    values, order, rank = _ranking(values, sample_ids)
    count = min(count, len(order))
    is_kept = (rank >= 1) & (rank <= count)
    if count == 0:
        return Selection(is_kept, rank, np.where(np.isnan(values), np.nan, -np.inf), np.inf, None)
    last = order[count - 1]
    return Selection(is_kept, rank, values - values[last], float(values[last]), sample_ids[last])


def select_threshold(values: np.ndarray, sample_ids: Sequence[str], threshold: float) -> Selection:
    """Keep every sample with value ≥ threshold. (N,) values; NaN is never kept."""
    if not np.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number, got {threshold}")
    values, _, rank = _ranking(values, sample_ids)
    return Selection(values >= threshold, rank, values - threshold, float(threshold), None)


def select_compat(values: np.ndarray, sample_ids: Sequence[str], fraction: float) -> Selection:
    """DataComp's rule: sort descending, take the element at index int(n · fraction), keep all values ≥ it.

    Keeps n · fraction + 1 samples plus ties (METHODS §2.4, §13.6), n being the samples with a value. The reference
    fails at fraction 1 with an index error; here that is a ValueError, as is anything outside [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"compat fraction must be in [0, 1), got {fraction}; use select_top_fraction to keep all")
    values, order, _ = _ranking(values, sample_ids)
    if len(order) == 0:
        raise ValueError("no sample has a value, so there is no compat threshold")
    return select_threshold(values, sample_ids, float(values[order[int(len(order) * fraction)]]))


def random_ranking(sample_ids: Sequence[str], seed: int) -> np.ndarray:
    """A value in [0, 1) per sample that depends on its id and the seed only. (N,) ids → (N,) float64.

    The same sample has the same value in every pool, shard order and machine.
    """
    return np.array([unit_interval_of(sample_id, f"random_ranking:{seed}") for sample_id in sample_ids])


def intersect(*subsets: Iterable[str]) -> list[str]:
    """Sample_ids that are in every subset, sorted. SIEVE §4.3: no re-normalisation. At least one subset."""
    if not subsets:
        raise ValueError("intersect needs at least one subset, got none")
    return sorted(set.intersection(*(set(subset) for subset in subsets)))


def intersection_over_union(first: Iterable[str], second: Iterable[str]) -> float:
    """Shared ids over all ids of two subsets, in [0, 1]. Raises ValueError when both are empty."""
    left, right = set(first), set(second)
    if not left | right:
        raise ValueError("intersection over union of two empty subsets is undefined")
    return len(left & right) / len(left | right)


def independent_iou(fraction: float) -> float:
    """Intersection over union to expect of two independent selections of the same fraction: k / (2 − k)."""
    check_fraction(fraction)
    return fraction / (2 - fraction)


def _ranking(values: np.ndarray, sample_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (N,), positions of valued samples best first (M,), ranks (N,) with 0 for NaN."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(sample_ids),):
        raise ValueError(f"expected one value per sample_id, got {values.shape} for {len(sample_ids)} ids")
    ids = np.array(sample_ids, dtype=np.bytes_)  # (N,) 32 bytes each; a str array would take 128
    if len(set(sample_ids)) != len(ids):
        raise ValueError("sample_ids must be unique to rank them: ties go by sample_id; drop duplicates first")
    order = np.lexsort((ids, -values))  # (N,) NaN last
    order = order[: len(order) - int(np.isnan(values).sum())]  # (M,)
    rank = np.zeros(len(values), dtype=np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    return values, order, rank
