"""Sorting of many numbers: by pieces that fit the cache, two at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

PIECES = 8
THREADS = 2  # numpy sorts outside Python's lock
SMALL = 200_000  # below, one plain sort is as quick


def argsort(keys: np.ndarray) -> np.ndarray:
    """(N,) numbers, no NaN → (N,) positions, smallest first; ties in any order, as numpy.argsort."""
    if len(keys) < SMALL:
        return np.argsort(keys)
    sample = np.sort(keys[:: len(keys) // 4096])
    limits = [sample[len(sample) * piece // PIECES] for piece in range(1, PIECES)]

    def sorted_piece(piece: int) -> np.ndarray:
        here = np.ones(len(keys), dtype=bool) if piece == 0 else keys >= limits[piece - 1]
        if piece < PIECES - 1:
            here &= keys < limits[piece]
        at = np.flatnonzero(here)
        return at[np.argsort(keys[at])]

    with ThreadPoolExecutor(THREADS) as executor:
        return np.concatenate(list(executor.map(sorted_piece, range(PIECES))))
