"""The rule of a cut on an array of values: which of them pass, which rank they have. Equal values go by position.

Values are in order of sample_id, so that ties go by sample_id, lowest first. Higher is better; NaN, a sample without a
value, has no rank and never passes. This is the package's one implementation (formulas.md §2.4, §13.6).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from curation_assets.numeric.identity import unit_interval_of
from curation_assets.numeric.sorting import argsort_descending, ordinals, stretches, values_of_ordinals

BUCKET_BITS = 16  # values are counted by so many bits of their ordinal, highest first
SORTED_AT_ONCE = 4_000_000  # values of one bucket that are held; a fuller one is counted by its next bits


@dataclass(frozen=True)
class Cutoff:
    """Where a cut falls among values: all above `threshold` pass, and those equal to it up to a position."""

    threshold: float  # smallest value that passes; +inf where none does
    last_tie: int | None = None  # position of the last passing value equal to the threshold; None: all of them pass
    edge: int | None = None  # position of the value that was the threshold, and passes as it was made again since

    def passes(self, values: np.ndarray) -> np.ndarray:
        """(M,) float64 → (M,) bool. NaN never passes."""
        if self.last_tie is None:
            return np.asarray(values >= self.threshold)
        passing = np.asarray(values > self.threshold)
        ties = np.flatnonzero(values == self.threshold)
        passing[ties[ties <= self.last_tie]] = True
        if self.edge is not None:
            passing[self.edge] = True
        return passing


#: Nothing passes, whatever its value.
NOTHING = Cutoff(np.inf, last_tie=-1)


def top_count(values: np.ndarray, count: int) -> Cutoff:
    """The best `count` of (M,) values pass, or all that have a value if they are fewer. O(M): nothing is sorted.

    Raises ValueError for a negative count.
    """
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    valued = count_valued(values)
    if not min(count, valued):
        return NOTHING
    last = _position_of_rank(values, valued, min(count, valued))
    return Cutoff(float(values[last]), last)


def top_share_compat(values: np.ndarray, fraction: float) -> Cutoff:
    """DataComp's rule: sort descending, take the element at index int(V · fraction), pass all values ≥ it.

    Passes V · fraction + 1 of the V values, plus ties (formulas.md §2.4, §13.6). The reference fails at fraction 1 with
    an
    index error; here that is a ValueError, as is anything else outside [0, 1), and values that are all NaN.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"compat fraction must be in [0, 1), got {fraction}; use semantics 'exact' to keep all")
    valued = count_valued(values)
    if not valued:
        raise ValueError("no sample has a value, so there is no compat threshold")
    return Cutoff(float(values[_position_of_rank(values, valued, int(valued * fraction) + 1)]))


def count_valued(values: np.ndarray) -> int:
    """How many of (M,) values are no NaN."""
    return len(values) - int(np.count_nonzero(np.isnan(values)))


def _position_of_rank(values: np.ndarray, valued: int, rank: int) -> int:
    """Position of the value of rank 1 … `valued`, the number of values that are no NaN."""
    ascending = valued - rank  # index if sorted; NaN comes last
    value = np.partition(values, ascending)[ascending]
    ties = np.flatnonzero(values == value)
    return int(ties[rank - 1 - int(np.count_nonzero(values > value))])


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
    return float(values_of_ordinals(np.array([prefix]))[0]), better


def _with_prefix(values: np.ndarray, prefix: np.uint64, shift: int) -> np.ndarray:
    """(M,) float64 → ordinals of those that are no NaN and whose bits from `shift` on are `prefix`."""
    found = ordinals(values[~np.isnan(values)])
    return found if shift == 64 else found[found >> np.uint64(shift) == prefix]


def ranks(values: np.ndarray) -> np.ndarray:
    """(M,) values → (M,) uint32: 1 is best, 0 for NaN."""
    order = argsort_descending(values)
    rank = np.zeros(len(values), dtype=np.uint32)
    for part in stretches(count_valued(values)):
        rank[order[part]] = np.arange(part.start + 1, part.stop + 1, dtype=np.uint32)
    return rank


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
