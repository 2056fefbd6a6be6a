"""Batches that cover many concepts, chosen from larger ones (CABS, diversity maximisation: arXiv 2511.20643 §4)."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

MOST = 10  # of a concept in a batch


def choose_batch(concepts: Sequence[Sequence[str]], size: int) -> list[int]:
    """Positions of `size` of (M,) candidates, in the order in which they are taken; all where there are fewer.

    A candidate's gain is the sum over its concepts c of (t_c − n_c) / t_c + 1 / freq_c: n_c are the candidates taken
    that hold c, freq_c all candidates that do, t_c = min(size / different concepts, MOST). One with a concept that
    has its t_c already is rejected. Chosen where the paper leaves it open: equal gains go to the earlier candidate;
    rejected ones fill a batch that would be short, in their order; freq_c is counted among the candidates.
    """
    frequency = Counter(concept for held in concepts for concept in held)
    target = min(size / max(len(frequency), 1), MOST)
    taken: Counter[str] = Counter()

    def gain(row: int) -> float | None:
        total = 0.0
        for concept in concepts[row]:
            if taken[concept] >= target:
                return None
            total += (target - taken[concept]) / target + 1 / frequency[concept]
        return total

    heap = [(-(gain(row) or 0.0), row) for row in range(len(concepts))]
    heapq.heapify(heap)
    batch: list[int] = []
    rejected: list[int] = []
    while heap and len(batch) < size:
        before, row = heap[0]
        now = gain(row)
        if now is None:
            rejected.append(row)
            heapq.heappop(heap)
        elif -now > before:  # a gain only falls, so one that is still the best is the best of all
            heapq.heapreplace(heap, (-now, row))
        else:
            batch.append(row)
            taken.update(concepts[row])
            heapq.heappop(heap)
    return batch + sorted(rejected)[: size - len(batch)]


def batches_of(
    concepts: Sequence[Sequence[str]], orders: Iterable[Sequence[int] | np.ndarray], size: int, keep: float
) -> Iterator[list[int]]:
    """Batches of exactly `size` of (N,) entries: each pass cuts its order into super-batches of size / keep, and every
    one of at least `size` gives one batch."""
    width = max(size, round(size / keep))
    for order in orders:
        for start in range(0, len(order), width):
            candidates = order[start : start + width]
            if len(candidates) >= size:
                picked = choose_batch([concepts[entry] for entry in candidates], size)
                yield [int(candidates[position]) for position in picked]
