"""An order of entries that mixes them and still reads neighbours together: blocks are shuffled, then windows of them.

Nothing is drawn ahead: where an entry comes follows from its position, the seed and the epoch, so that readers that
share the work, or start in the middle, agree without a word.
"""

import numpy as np

BLOCK = 64  # entries that lie together in a file and are moved together; 16 blocks make the usual window


class BlockOrder:
    """The order of N entries that lie in files, one after another.

    Each file's entries are cut into blocks of BLOCK; the blocks are put in an order of the epoch's, and of their
    entries each `window` in a row is shuffled. Without a seed entries come as they lie.
    """

    def __init__(self, files: np.ndarray, window: int, seed: int | None) -> None:
        """`files`: (N,) number of each entry's file, equal ones in a row."""
        place = np.arange(len(files))
        is_first = np.append(True, files[1:] != files[:-1])[: len(files)]
        first = np.maximum.accumulate(np.where(is_first, place, 0))  # (N,) where the entry's file begins
        self._starts = np.flatnonzero((place - first) % BLOCK == 0)  # (B,)
        self._lengths = np.diff(np.append(self._starts, len(files)))  # (B,)
        self._count, self._window, self._seed = len(files), window, seed
        self._epoch: int | None = None
        self._blocks = self._ends = np.empty(0, np.int64)  # of the epoch: (B,) blocks in order, where each ends

    def at(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Entries at positions of an epoch's order: (K,) → (K,), all in 0 … N - 1."""
        if self._seed is None:
            return positions
        if epoch != self._epoch:
            self._blocks = _shuffled(len(self._starts), self._seed, epoch, 0)
            self._ends = np.cumsum(self._lengths[self._blocks])
            self._epoch = epoch
        mixed = np.empty_like(positions)
        numbers = positions // self._window
        for number in np.unique(numbers):
            start = number * self._window
            inside = _shuffled(min(self._window, self._count - start), self._seed, epoch, 1 + int(number))
            chosen = numbers == number
            mixed[chosen] = start + inside[positions[chosen] - start]
        turn = np.searchsorted(self._ends, mixed, side="right")  # (K,) which block of the epoch
        block = self._blocks[turn]
        entries: np.ndarray = self._starts[block] + mixed - (self._ends[turn] - self._lengths[block])
        return entries


def _shuffled(count: int, seed: int, epoch: int, part: int) -> np.ndarray:
    """0 … count - 1 in an order of its own. NumPy promises the numbers of a bit generator, not those of `shuffle`."""
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch, part])).random_raw(count)
    return np.argsort(draws, kind="stable")
