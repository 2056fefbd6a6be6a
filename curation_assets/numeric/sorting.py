"""Sorting and reordering of many numbers, with two cores and little memory beside the numbers themselves."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

THREADS = 2  # numpy sorts and gathers outside Python's lock
SMALL = 200_000  # below, threads cost more than they bring
STRETCH = 1 << 18  # rows of an array that are worked on at once: temporary arrays stay small


def stretches(size: int, length: int = STRETCH) -> list[slice]:
    """Consecutive slices of at most `length` that cover `size` rows; one empty slice for none."""
    return [slice(start, min(start + length, size)) for start in range(0, max(size, 1), length)]


def position_type(size: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type, of 4 bytes or 8, of positions in an array of `size`."""
    return np.uint32 if size <= 1 << 32 else np.uint64


def positions(mask: np.ndarray) -> np.ndarray:
    """(N,) bool → (M,) positions of the true ones, ascending, in `position_type`. As numpy.flatnonzero."""
    found = np.empty(int(np.count_nonzero(mask)), dtype=position_type(len(mask)))
    end = 0
    for part in stretches(len(mask)):
        some = np.flatnonzero(mask[part])
        found[end : end + len(some)] = some + part.start
        end += len(some)
    return found


def argsort(keys: np.ndarray) -> np.ndarray:
    """(N,) uint64, or float64 without NaN → (N,) positions, smallest first, equal keys in order of position.

    Each key is sorted together with its position, both in one number: a fifth of the time of numpy.argsort. A key's
    last bits, where there is no room for them, are looked at only in keys that agree in the others. Raises TypeError
    for another dtype.
    """
    return _argsort(ordinals(keys))


def argsort_descending(keys: np.ndarray) -> np.ndarray:
    """(N,) float64 → (N,) positions, largest first, NaN last, equal keys in order of position. Raises as `argsort`."""
    ordinal = ordinals(keys)
    np.invert(ordinal, out=ordinal)
    is_number = ~np.isnan(keys)
    highest = ordinal.max(where=is_number, initial=0)  # of -inf it is 2^52 below the largest number
    np.copyto(ordinal, highest + np.uint64(1), where=~is_number)
    return _argsort(ordinal)


def _argsort(ordinal: np.ndarray) -> np.ndarray:
    """(N,) uint64, which is overwritten → (N,) positions."""
    if len(ordinal):  # as small as can be, then shifted to the first bits
        ordinal -= ordinal.min()
        ordinal <<= np.uint64(64 - int(ordinal.max()).bit_length() & 63)
    position_bits = max(len(ordinal) - 1, 0).bit_length()
    position_mask = np.uint64((1 << position_bits) - 1)
    packed = ordinal & ~position_mask
    for part in stretches(len(packed)):
        packed[part] |= np.arange(part.start, part.stop, dtype=np.uint64)
    _sort(packed)
    order = np.empty(len(packed), dtype=position_type(len(packed)))
    np.bitwise_and(packed, position_mask, out=order, casting="unsafe")
    if np.bitwise_or.reduce(ordinal) & position_mask:
        packed &= ~position_mask
        near = np.flatnonzero(in_runs(packed))
        near = near[_in_mixed_runs(packed[near], ordinal[order[near]])]
        tied = order[near]
        order[near] = tied[np.lexsort((tied, ordinal[tied]))]
    return order


def _sort(keys: np.ndarray) -> None:
    """As `keys.sort()`, of keys that all differ: the lower and the upper half at once."""
    middle = len(keys) // 2
    if len(keys) <= SMALL:
        keys.sort()
        return
    keys.partition(middle)
    with ThreadPoolExecutor(THREADS) as executor:
        list(executor.map(np.ndarray.sort, (keys[:middle], keys[middle:])))


def _in_mixed_runs(first_bits: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(M,) bool: in a run of equal `first_bits` whose `keys` differ."""
    if not len(keys):
        return np.zeros(0, dtype=bool)
    starts = np.flatnonzero(np.append(True, first_bits[1:] != first_bits[:-1]))
    is_mixed = np.minimum.reduceat(keys, starts) != np.maximum.reduceat(keys, starts)
    return np.repeat(is_mixed, np.diff(starts, append=len(keys)))


def ordinals(keys: np.ndarray) -> np.ndarray:
    """(N,) uint64 in the order of `keys`; NaN is first or last, by its sign."""
    if keys.dtype == np.float64:
        ordinal = (keys + 0.0).view(np.uint64)  # -0.0 + 0.0 = 0.0
        for part in stretches(len(ordinal)):
            negative = (ordinal[part].view(np.int64) >> 63).view(np.uint64)  # all bits set or none
            ordinal[part] ^= negative | np.uint64(1 << 63)
    elif keys.dtype == np.uint64:
        ordinal = keys.copy()
    else:
        raise TypeError(f"expected uint64 or float64 keys, got {keys.dtype}")
    return ordinal


def values_of_ordinals(ordinal: np.ndarray) -> np.ndarray:
    """The inverse of `ordinals` for float64: (N,) uint64 → (N,) float64."""
    negative = ordinal >> np.uint64(63) == 0
    return np.where(negative, ~ordinal, ordinal ^ np.uint64(1 << 63)).view(np.float64)


def as_pairs(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """(N,) and (N,) whole numbers from 0 on → (N,) texts of 16 bytes, which NumPy sorts and searches as the pairs."""
    pairs = np.empty((len(high), 2), dtype=">u8")
    pairs[:, 0], pairs[:, 1] = high, low
    return pairs.view("S16").ravel()


def in_runs(ordered: np.ndarray) -> np.ndarray:
    """(N,) sorted → (N,) bool: equal to a neighbour."""
    is_tied = np.zeros(len(ordered), dtype=bool)
    np.equal(ordered[1:], ordered[:-1], out=is_tied[1:])
    is_tied[:-1] |= is_tied[1:]
    return is_tied


def gather(column: np.ndarray, order: np.ndarray) -> np.ndarray:
    """`column[order]`, (M,) in the given order (N,). Raises IndexError for a position that `column` has not."""
    if len(order) <= SMALL:
        return np.asarray(column[order])
    if order.max() >= len(column) or order.min() < -len(column):
        raise IndexError(f"positions from {order.min()} to {order.max()} of a column of {len(column)}")
    gathered = np.empty(len(order), dtype=column.dtype)

    def take(part: slice) -> None:  # all are there: 'wrap' looks at none of them again, half the time of column[order]
        np.take(column, order[part].astype(np.intp), out=gathered[part], mode="wrap")

    with ThreadPoolExecutor(THREADS) as executor:
        list(executor.map(take, stretches(len(order))))
    return gathered


def inverse(order: np.ndarray) -> np.ndarray:
    """(N,) a permutation → (N,) where each position is in it: `inverse(order)[order]` is 0, 1, 2 …"""
    places = np.empty_like(order)
    for part in stretches(len(order)):
        places[order[part]] = np.arange(part.start, part.stop, dtype=order.dtype)
    return places
