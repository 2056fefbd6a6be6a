"""Batches by concepts: the lazy heap chooses what computing every gain at every turn would."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.numeric.concept_batches import batches_of, choose_batch

CONCEPTS = st.lists(st.lists(st.sampled_from("abcdefg"), unique=True, max_size=4).map(sorted), max_size=40)


def by_the_formula(concepts: list[list[str]], size: int, most: int = 10) -> list[int]:
    """Every gain anew at every turn, the best of those that no full concept rejects, the earliest of equals."""
    frequency = Counter(concept for held in concepts for concept in held)
    target = min(size / max(len(frequency), 1), most)
    taken: Counter[str] = Counter()
    batch: list[int] = []
    left = list(range(len(concepts)))
    while left and len(batch) < size:
        allowed = [row for row in left if all(taken[concept] < target for concept in concepts[row])]
        if not allowed:
            break
        gains = [sum((target - taken[c]) / target + 1 / frequency[c] for c in concepts[row]) for row in allowed]
        row = allowed[int(np.argmax(gains))]
        batch.append(row)
        left.remove(row)
        taken.update(concepts[row])
    return batch + left[: size - len(batch)]


@settings(max_examples=300)
@given(CONCEPTS, st.integers(1, 30))
def test_the_heap_follows_the_formula(concepts: list[list[str]], size: int) -> None:
    assert choose_batch(concepts, size) == by_the_formula(concepts, size)


def test_a_rare_concept_comes_first_and_a_full_one_waits() -> None:
    concepts = [["dog"], ["dog"], ["dog"], ["cat"]]  # t = 2 / 2 = 1
    assert choose_batch(concepts, 2) == [3, 0]
    assert choose_batch(concepts, 4) == [3, 0, 1, 2]  # t = 2; the third dog is rejected, and fills the batch


def test_a_batch_is_more_diverse_than_a_draw() -> None:
    rng = np.random.default_rng(0)
    names = [f"c{number}" for number in range(50)]
    chances = 1 / np.arange(1, 51)
    chances /= chances.sum()
    concepts = [sorted(set(rng.choice(names, size=3, p=chances))) for _ in range(500)]
    chosen, drawn = choose_batch(concepts, 100), rng.choice(500, 100, replace=False)
    assert len({c for row in chosen for c in concepts[row]}) > len({c for row in drawn for c in concepts[row]})


@pytest.mark.parametrize(("entries", "expected"), [(50, [10]), (100, [10, 10]), (57, [10]), (65, [10, 10]), (9, [])])
def test_each_super_batch_gives_one_batch(entries: int, expected: list[int]) -> None:
    chosen = list(batches_of([["a"]] * entries, [list(range(entries))], 10, 0.2))
    assert [len(batch) for batch in chosen] == expected
    assert len({entry for batch in chosen for entry in batch}) == sum(expected)
