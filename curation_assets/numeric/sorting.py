"""Numbers as what sorts like them, and arrays in stretches, so that temporary ones stay small."""

from typing import Any

import numpy as np

STRETCH = 1 << 18  # rows of an array that are worked on at once: temporary arrays stay small


def stretches(size: int, length: int = STRETCH) -> list[slice]:
    """Consecutive slices of at most `length` that cover `size` rows; one empty slice for none."""
    return [slice(start, min(start + length, size)) for start in range(0, max(size, 1), length)]


def position_type(size: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type, of 4 bytes or 8, of positions in an array of `size`."""
    return np.uint32 if size <= 1 << 32 else np.uint64


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
