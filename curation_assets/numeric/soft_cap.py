"""Soft-cap sampling: repeated draws without replacement, each draw of a sample making the next less likely (FLYT)."""

import numpy as np

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)


def gumbel_of(keys: np.ndarray, draw: int) -> np.ndarray:
    """Standard Gumbel noise of (N,) uint64 keys for one draw: the same for the same key, whatever else there is.

    Splitmix64 (Steele et al. 2014) of key and draw gives a uniform number u in (0, 1); −log(−log u).
    """
    with np.errstate(over="ignore"):
        state = keys.astype(np.uint64) + _STEP * np.uint64(2 * draw + 1)
        state = (state ^ (state >> np.uint64(30))) * _MIX[0]
        state = (state ^ (state >> np.uint64(27))) * _MIX[1]
        state ^= state >> np.uint64(31)
    uniform = ((state >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return -np.log(-np.log(uniform))


def fit_soft_cap(logits: np.ndarray, keys: np.ndarray, budget: int, draws: int, penalty: float) -> np.ndarray:
    """Thresholds of `draws` draws that take `budget` entries together, those of the last one fewer if need be: (K,).

    A draw without replacement from softmax(logits) takes the largest of logits + Gumbel noise (Vieira 2014; Kool et al.
    2019), so where it cuts is all that others must know of it. After each, the drawn lose `penalty` (FLYT: .15).
    Raises ValueError for a draw of more than there are, or none.
    """
    n, per_draw = len(logits), -(-budget // draws)
    if not 0 < per_draw <= n:
        raise ValueError(
            f"{budget} entries in {draws} draws are {per_draw} of {n} samples each: lower the budget or draw more often"
        )
    sizes = [min(per_draw, budget - draw * per_draw) for draw in range(draws) if budget > draw * per_draw]
    left, thresholds = np.asarray(logits, dtype=np.float64).copy(), []
    for draw, size in enumerate(sizes):
        noisy = left + gumbel_of(keys, draw)
        threshold = np.partition(noisy, n - size)[n - size]
        left[noisy >= threshold] -= penalty
        thresholds.append(threshold)
    return np.array(thresholds)


def multiplicities(logits: np.ndarray, keys: np.ndarray, thresholds: np.ndarray, penalty: float) -> np.ndarray:
    """How often each sample is drawn: (N,) int64. Every sample is judged alone by the (K,) thresholds."""
    left = np.asarray(logits, dtype=np.float64).copy()
    drawn = np.zeros(len(left), dtype=np.int64)
    for draw, threshold in enumerate(thresholds):
        taken = left + gumbel_of(keys, draw) >= threshold
        drawn += taken
        left[taken] -= penalty
    return drawn
