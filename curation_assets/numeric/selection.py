"""The rule of a cut on an array of values: which of them pass. Higher is better; NaN, no value, never passes.

Equal values go by sample_id, lowest first. This is the package's one implementation (formulas.md §2.4, §13.6).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import polars as pl

from curation_assets.numeric.identity import unit_interval_of

BUCKET_BITS = 16  # values are counted by so many bits of their ordinal, highest first
SORTED_AT_ONCE = 4_000_000  # values of one bucket that are held; a fuller one is counted by its next bits
_SIGN = np.uint64(1 << 63)

#: How far a value that is made again, on another machine or in another batch, may be from what it was: twenty times
#: what was seen (4e-8), relative to 1 or to the value. The row on which a cut fell does not fall out by it.
MADE_AGAIN = 1e-6


@dataclass(frozen=True)
class Cutoff:
    """Where a cut falls among values: all above `threshold` pass, and those equal to it up to a sample_id."""

    threshold: float  # smallest value that passes; +inf where none does
    boundary_id: str | None = None  # the last sample that passes with a value equal to the threshold; None: all of them

    def passes(self, values: np.ndarray, ids: pl.Series) -> np.ndarray:
        """(M,) float64, (M,) sample_ids → (M,) bool. NaN never passes.

        The sample `boundary_id` passes, too, where its value was made again and is as good as equal (MADE_AGAIN).
        """
        if self.boundary_id is None:
            return np.asarray(values >= self.threshold)
        passing = np.asarray(values > self.threshold)
        ties = np.flatnonzero(values == self.threshold)
        if len(ties):
            passing[ties] = (ids.gather(ties) <= self.boundary_id).to_numpy()
        tolerance = MADE_AGAIN * max(1, abs(self.threshold))
        if np.isfinite(tolerance):
            near = np.flatnonzero((values < self.threshold) & (self.threshold - values <= tolerance))
            if len(near):
                passing[near] = (ids.gather(near) == self.boundary_id).to_numpy()
        return passing


def best(values: np.ndarray, count: int) -> np.ndarray:
    """(M,) values, higher is better → (M,) bool: the best `count`, or all that have a value; ties by position.

    Raises ValueError for a negative count.
    """
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    order = np.argsort(-values, kind="stable")[: min(count, int(np.count_nonzero(~np.isnan(values))))]
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order] = True
    return chosen


def compat_rank(valued: int, fraction: float) -> int:
    """Rank, 1 is best, of the value that DataComp's rule takes as threshold: index int(V · fraction) of V values.

    All values as good pass: V · fraction + 1, plus ties (formulas.md §2.4, §13.6). The reference fails at fraction 1
    with an index error; here that is a ValueError, as is anything else outside [0, 1), and no value at all.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"compat fraction must be in [0, 1), got {fraction}; use semantics 'exact' to keep all")
    if not valued:
        raise ValueError("no sample has a value, so there is no compat threshold")
    return int(valued * fraction) + 1


def value_of_rank(parts: Callable[[], Iterable[np.ndarray]], rank: int) -> tuple[float, int]:
    """The value of rank 1 … V, and how many are better, of V values (without NaN) that come part by part.

    `parts` is read two times to five, in memory that does not grow with V: counts in buckets, then the values
    of the bucket that holds the rank. Of zeros the sign is lost.
    """
    prefix, better = np.uint64(0), 0
    for shift in map(np.uint64, range(64 - BUCKET_BITS, -1, -BUCKET_BITS)):
        counts = np.zeros(1 << BUCKET_BITS, dtype=np.int64)
        for values in parts():
            found = _with_prefix(values, prefix, int(shift) + BUCKET_BITS)
            bucket = (found >> shift) & np.uint64(len(counts) - 1)
            counts += np.bincount(bucket.astype(np.int64), minlength=len(counts))
        from_here = np.cumsum(counts[::-1])[::-1]  # values of a bucket and of better ones
        last = int(np.flatnonzero(better + from_here >= rank)[-1])
        better += int(from_here[last] - counts[last])
        prefix = prefix << np.uint64(BUCKET_BITS) | np.uint64(last)
        if shift and counts[last] <= SORTED_AT_ONCE:
            held = np.sort(np.concatenate([_with_prefix(values, prefix, int(shift)) for values in parts()]))
            prefix = held[len(held) - (rank - better)]
            better += len(held) - int(np.searchsorted(held, prefix, side="right"))
            break
    return _value_of_ordinal(prefix), better


def _with_prefix(values: np.ndarray, prefix: np.uint64, shift: int) -> np.ndarray:
    """(M,) float64 → of those that are no NaN uint64 in their order, whose bits from `shift` on are `prefix`."""
    bits = (values[~np.isnan(values)] + 0.0).view(np.uint64)  # -0.0 + 0.0 = 0.0
    found = bits ^ ((bits.view(np.int64) >> 63).view(np.uint64) | _SIGN)  # of negative values all bits turn
    return found if shift == 64 else found[found >> np.uint64(shift) == prefix]


def _value_of_ordinal(ordinal: np.uint64) -> float:
    return float((ordinal ^ _SIGN if ordinal & _SIGN else ~ordinal).view(np.float64))


def id_of_rank(parts: Iterable[pl.Series], rank: int) -> str:
    """The sample_id of rank 1 … N, the lowest first, of N that come part by part; no more than `rank` are held, and a
    part."""
    held = pl.Series([], dtype=pl.String)
    for ids in parts:
        held = pl.concat([held, ids])
        if len(held) > 2 * rank:
            held = held.sort().head(rank)
    return str(held.sort()[rank - 1])


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


def random_ranking(sample_ids: Sequence[str], seed: int) -> np.ndarray:
    """A value in [0, 1) per sample that depends on its id and the seed only. (N,) ids → (N,) float64.

    The same sample has the same value in every pool, shard order and machine.
    """
    return np.array([unit_interval_of(sample_id, f"random_ranking:{seed}") for sample_id in sample_ids])
