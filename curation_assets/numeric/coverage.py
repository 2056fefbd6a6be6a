"""Greedy cover of weighted concepts with falling returns, and the level at which any sample would be taken."""

import heapq

import numpy as np

from curation_assets.numeric.concepts import Matches

SAME = 1e-9  # relative: levels so near are one, whatever the order of a sum
BISECTIONS = 60


def greedy_levels(matches: Matches, weights: np.ndarray) -> np.ndarray:
    """Gain of each row when a greedy choice of all rows takes it; never rises from one to the next taken.

    Objective Σ_items weight · log(1 + rows taken that hold it): monotone and submodular, so the first k rows by level
    are within 1 − 1/e of the best k (Nemhauser et al. 1978). Equal gains go to the lower row. (P,) pairs, (I,) weights
    → (N,) float64. Lazily: a row's gain only falls, so the best of a heap is taken once its gain is up to date.
    """
    starts = np.searchsorted(matches.row, np.arange(matches.rows + 1))
    items = [matches.item[starts[row] : starts[row + 1]].tolist() for row in range(matches.rows)]
    weight = weights.tolist()
    gains = (np.log1p(np.arange(1, matches.rows + 1)) - np.log1p(np.arange(matches.rows))).tolist()
    taken = [0] * len(weight)
    level = np.zeros(matches.rows)
    heap = [(-sum(weight[item] * gains[0] for item in items[row]), row) for row in range(matches.rows)]
    heapq.heapify(heap)
    while heap:
        gain, row = heap[0]
        now = -sum(weight[item] * gains[taken[item]] for item in items[row])
        if now > gain:
            heapq.heapreplace(heap, (now, row))
            continue
        heapq.heappop(heap)
        level[row] = -now
        for item in items[row]:
            taken[item] += 1
    return level


def levels_of_items(matches: Matches, level: np.ndarray, items: int) -> tuple[np.ndarray, np.ndarray]:
    """The levels at which rows of each item were taken: (P,) ascending within each item, and (I + 1,) its bounds."""
    of_pair = level[matches.row]
    order = np.lexsort((of_pair, matches.item))
    return of_pair[order], np.searchsorted(matches.item[order], np.arange(items + 1))


def level_of(matches: Matches, weights: np.ndarray, levels: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """A level at which the greedy choice would take each of (N,) rows that came later, given those that it took.

    A g with gain(rows taken above g) ≥ g that fails just above it, found by halving: never above that of a row with
    the same items that was there before. A late row changes no other's level.
    """
    weight = weights[matches.item]
    low = np.zeros(matches.rows)
    high = np.zeros(matches.rows)
    np.add.at(high, matches.row, weight * np.log(2.0))

    def gain_at(g: np.ndarray) -> np.ndarray:
        above = bounds[matches.item + 1] - _first_above(levels, bounds, matches.item, (g * (1 + SAME))[matches.row])
        gain = np.zeros(matches.rows)
        np.add.at(gain, matches.row, weight * (np.log1p(above + 1) - np.log1p(above)))
        return gain

    is_first = gain_at(high) >= high * (1 - SAME)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        reached = gain_at(middle) >= middle * (1 - SAME)
        low, high = np.where(reached, middle, low), np.where(reached, high, middle)
    found = gain_at(low)  # between two levels nothing is taken, so the gain there is the level itself
    return np.where(is_first, gain_at(high), found)


def _first_above(levels: np.ndarray, bounds: np.ndarray, item: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(P,) position of the first level of the pair's item that is above `value`; all searches at once, by halving."""
    first, last = bounds[item].copy(), bounds[item + 1].copy()
    for _ in range(int(np.diff(bounds).max(initial=0)).bit_length()):
        is_open = first < last
        middle = (first + last) // 2
        is_above = levels[np.minimum(middle, len(levels) - 1)] > value
        last = np.where(is_open & is_above, middle, last)
        first = np.where(is_open & ~is_above, middle + 1, first)
    return first
