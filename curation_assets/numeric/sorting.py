"""Sorting and reordering of many numbers, with two cores."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREADS = 2  # numpy sorts and gathers outside Python's lock
SMALL = 200_000  # below, threads cost more than they bring


def argsort(keys: np.ndarray) -> np.ndarray:
    """(N,) uint64, or float64 without NaN → (N,) positions, smallest first, equal keys in order of position.

    Each key is sorted together with its position, both in one number: a fifth of the time of numpy.argsort. A key's
    last bits, where there is no room for them, are looked at only in keys that agree in the others. Raises TypeError
    for another dtype.
    """
    ordinal = _ordinals(keys)
    position_bits = max(len(keys) - 1, 0).bit_length()
    position_mask = np.uint64((1 << position_bits) - 1)
    packed = ordinal & ~position_mask
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & position_mask).view(np.int64)
    if np.bitwise_or.reduce(ordinal) & position_mask:
        packed &= ~position_mask
        near = np.flatnonzero(in_runs(packed))
        near = near[_in_mixed_runs(packed[near], ordinal[order[near]])]
        tied = order[near]
        order[near] = tied[np.lexsort((tied, ordinal[tied]))]
    return order


def _in_mixed_runs(first_bits: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(M,) bool: in a run of equal `first_bits` whose `keys` differ."""
    if not len(keys):
        return np.zeros(0, dtype=bool)
    starts = np.flatnonzero(np.append(True, first_bits[1:] != first_bits[:-1]))
    is_mixed = np.minimum.reduceat(keys, starts) != np.maximum.reduceat(keys, starts)
    return np.repeat(is_mixed, np.diff(starts, append=len(keys)))


def _ordinals(keys: np.ndarray) -> np.ndarray:
    """(N,) uint64 in the order of `keys`, as small as can be and then shifted to the first bits."""
    if keys.dtype == np.float64:
        ordinal = (keys + 0.0).view(np.uint64)  # -0.0 + 0.0 = 0.0
        negative = (ordinal.view(np.int64) >> 63).view(np.uint64)  # all bits set or none
        ordinal ^= negative | np.uint64(1 << 63)
    elif keys.dtype == np.uint64:
        ordinal = keys.copy()
    else:
        raise TypeError(f"expected uint64 or float64 keys, got {keys.dtype}")
    if len(ordinal):
        ordinal -= ordinal.min()
        ordinal <<= np.uint64(64 - int(ordinal.max()).bit_length() & 63)
    return ordinal


def in_runs(ordered: np.ndarray) -> np.ndarray:
    """(N,) sorted → (N,) bool: equal to a neighbour."""
    is_tied = np.zeros(len(ordered), dtype=bool)
    np.equal(ordered[1:], ordered[:-1], out=is_tied[1:])
    is_tied[:-1] |= is_tied[1:]
    return is_tied


def gather(columns: Sequence[np.ndarray], order: np.ndarray) -> list[np.ndarray]:
    """Each of `columns` (M,) in the given order (N,): `column[order]`."""
    with ThreadPoolExecutor(THREADS if len(order) > SMALL else 1) as executor:
        return list(executor.map(lambda column: column[order], columns))
