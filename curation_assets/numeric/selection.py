"""How a cut decides which values of an array pass. Higher is better; NaN (no value) never passes.

Of equal values the lowest sample_id passes first. The package has no other implementation
(formulas.md §2.4, §13.6).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import polars as pl

from curation_assets.numeric.identity import unit_interval_of

BUCKET_BITS = 16  # bits of its ordinal that choose the bucket in which a value is counted, the highest bits first
SORTED_AT_ONCE = 4_000_000  # values of a bucket that are sorted in memory; a fuller bucket is split by its next bits
_SIGN = np.uint64(1 << 63)

#: How far a value that is computed again, on another machine or in another batch, may be from what it was, relative
#: to 1 or to the value: over twenty times the largest difference seen (4e-8). The row on which a cut fell then stays.
MADE_AGAIN = 1e-6


@dataclass(frozen=True)
class Cutoff:
    """Where a cut falls among values: all above `threshold` pass, and those equal to it up to a sample_id."""

    threshold: float  # smallest value that passes; +inf where none does
    boundary_id: str | None = None  # the last sample that passes with a value equal to the threshold; None: all of them

    def passes(self, values: np.ndarray, ids: pl.Series) -> np.ndarray:
        """(M,) float64, (M,) sample_ids → (M,) bool. NaN never passes.

        The sample `boundary_id` also passes where its value was computed again and is almost equal
        (MADE_AGAIN).
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
    order = np.argsort(-values, kind="stable")[:count]  # NaN last
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order] = True
    return chosen & ~np.isnan(values)


def compat_rank(valued: int, fraction: float) -> int:
    """Rank, 1 is best, of the value that DataComp's rule takes as threshold: index int(V · fraction) of V values.

    V · fraction + 1 values pass, and those equal to the last of them (formulas.md §2.4, §13.6).
    Raises ValueError for a fraction outside [0, 1) (the reference fails at fraction 1 with an index
    error), and where there is no value.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"compat fraction must be in [0, 1), got {fraction}; use semantics 'exact' to keep all")
    if not valued:
        raise ValueError("no sample has a value, so there is no compat threshold")
    return int(valued * fraction) + 1


def value_of_rank(parts: Callable[[], Iterable[np.ndarray]], rank: int) -> tuple[float, int]:
    """The value of a rank (1 is best) among V values without NaN, and how many are better.

    The values come part by part. `parts` is read two to five times, in memory that does not grow
    with V: to count values in buckets, then for the values of the bucket that holds the rank. A
    zero loses its sign.
    """
    prefix, better = np.uint64(0), 0  # bits of the ordinal that are known so far, and values with higher ones
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
    """(M,) float64 → ordinals, uint64 in the same order, whose bits from `shift` on are `prefix`; no NaN."""
    bits = (values[~np.isnan(values)] + 0.0).view(np.uint64)  # -0.0 + 0.0 = 0.0
    found = bits ^ ((bits.view(np.int64) >> 63).view(np.uint64) | _SIGN)  # of negative values all bits turn
    return found if shift == 64 else found[found >> np.uint64(shift) == prefix]


def _value_of_ordinal(ordinal: np.uint64) -> float:
    bits = ordinal ^ _SIGN if ordinal & _SIGN else ~ordinal
    return float(bits.view(np.float64))


def id_of_rank(parts: Iterable[pl.Series], rank: int) -> str:
    """The sample_id of a rank, 1 is the lowest, of ids that come part by part.

    At most twice `rank` ids and a part are in memory.
    """
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
    """(N,) sample_ids → (N,) float64 in [0, 1), which depend on the id and the seed only.

    The same sample has the same value in every pool, shard order and machine.
    """
    return np.array([unit_interval_of(sample_id, f"random_ranking:{seed}") for sample_id in sample_ids])
