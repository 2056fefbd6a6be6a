"""Mixtures: how many entries each group of a training set gets, and which of its rows are repeated."""

import numpy as np


def entries_of_groups(rows: np.ndarray, weights: np.ndarray, total: int, max_epochs: int) -> np.ndarray:
    """Entries of each group: `total` by weight, exact to one entry (largest remainder), a group at most `max_epochs`
    times its rows; what it cannot take goes to the others by their weights. (G,) rows, (G,) weights ≥ 0 → (G,) int64.

    The sum is `total`, or less where all groups of a weight above 0 are full. Equal remainders: the first group.
    [10, 1000] rows, [.5, .5], total 100, 4 epochs: [40, 60].
    """
    room = rows.astype(np.int64) * max_epochs
    entries = np.zeros(len(rows), dtype=np.int64)
    is_open = (weights > 0) & (room > 0)
    left = int(total)
    while left > 0 and is_open.any():
        quota = np.where(is_open, weights, 0.0) / weights[is_open].sum() * left
        full = is_open & (quota >= room)
        if not full.any():
            whole = np.floor(quota).astype(np.int64)
            extra = np.argsort(-(quota - whole), kind="stable")
            extra = extra[is_open[extra]][: left - int(whole.sum())]
            whole[extra] += 1
            return entries + whole
        entries[full] = room[full]
        left = int(total) - int(entries.sum())
        is_open &= ~full
    return entries


def weights_of_sizes(rows: np.ndarray, alpha: float) -> np.ndarray:
    """w ∝ rows^alpha, sum 1: 1 as the pool, 0 all alike. (G,) → (G,) float64; a group without rows has none."""
    powers = np.where(rows > 0, np.maximum(rows, 1).astype(np.float64) ** alpha, 0.0)
    return powers / max(powers.sum(), 1e-300)


def edge_of(values: np.ndarray, keys: np.ndarray, extra: int) -> tuple[float, int]:
    """Value and key of the last of the best `extra` of (M,) values, higher is better, equal ones by (M,) keys, lower
    first; infinity where there is none."""
    last = np.lexsort((keys, -values))[extra - 1] if extra else None
    return (np.inf, 0) if last is None else (float(values[last]), int(keys[last]))


def is_inside(values: np.ndarray, keys: np.ndarray, edge: tuple[float, int]) -> np.ndarray:
    """(M,) bool: as good as the edge or better."""
    return (values > edge[0]) | ((values == edge[0]) & (keys <= np.uint64(edge[1])))
