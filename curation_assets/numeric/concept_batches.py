"""Batches that cover many concepts, chosen from larger ones (CABS, diversity maximisation: arXiv 2511.20643 §4)."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

MOST_PER_CONCEPT = 10  # samples of a concept in a batch


def choose_batch(concepts: Sequence[Sequence[str]], size: int) -> list[int]:
    """Positions of `size` of (M,) candidates, in the order in which they are taken; all where there are fewer.

    A candidate's gain is the sum over its concepts c of (t_c − n_c) / t_c + 1 / freq_c. Of the
    candidates that have c, n_c are taken already, and freq_c is the number of all. t_c = min(size /
    different concepts, MOST_PER_CONCEPT). A candidate is rejected once a concept of it has its t_c.
    We chose where the paper leaves it open: equal gains go to the earlier candidate; a batch that
    would be short is filled with rejected candidates, in their order; freq_c is counted among the
    candidates.
    """
    frequency = Counter(itertools.chain.from_iterable(concepts))
    target = min(size / max(len(frequency), 1), MOST_PER_CONCEPT)
    taken: Counter[str] = Counter()

    def loss(row: int) -> float:
        """Minus the gain of a candidate, as a heap has the smallest first; infinite: rejected."""
        total = 0.0
        for concept in concepts[row]:
            if taken[concept] >= target:
                return math.inf
            total -= (target - taken[concept]) / target + 1 / frequency[concept]
        return total

    heap = [(loss(row), row) for row in range(len(concepts))]
    heapq.heapify(heap)
    batch: list[int] = []
    rejected: list[int] = []
    while heap and len(batch) < size:
        before, row = heapq.heappop(heap)
        now = loss(row)
        if now == math.inf:
            rejected.append(row)
        elif now > before:  # a gain only falls: a candidate that is first with its gain of now is the best of all
            heapq.heappush(heap, (now, row))
        else:
            batch.append(row)
            taken.update(concepts[row])
    return batch + sorted(rejected)[: size - len(batch)]


def batches_of(
    concepts: Sequence[Sequence[str]], orders: Iterable[Sequence[int] | np.ndarray], size: int, keep: float
) -> Iterator[list[int]]:
    """Batches of exactly `size` of (N,) entries. Each of `orders`, a pass over the entries, is cut
    into candidates of size / keep entries; fewer than `size`, at the end, give no batch."""
    width = max(size, round(size / keep))
    for order in orders:
        for start in range(0, len(order), width):
            candidates = order[start : start + width]
            if len(candidates) >= size:
                picked = choose_batch([concepts[entry] for entry in candidates], size)
                yield [int(candidates[position]) for position in picked]
