"""The greedy cover: by hand, against the slow obvious twin, and the level of rows that came later."""

import numpy as np
import pytest

from curation_assets.numeric.concepts import Matches
from curation_assets.numeric.coverage import greedy_levels, level_of, levels_of_items


def matches_of(rows: list[list[int]]) -> Matches:
    lengths = [len(row) for row in rows]
    flat = np.array([item for row in rows for item in row], dtype=np.int64)
    return Matches(np.repeat(np.arange(len(rows)), lengths), flat, len(rows))


def slow_order(rows: list[list[int]], weights: np.ndarray) -> list[int]:
    """Every step looks at every row."""
    taken, left, order = np.zeros(len(weights)), set(range(len(rows))), []
    while left:
        gains = {
            row: sum(weights[i] * (np.log1p(taken[i] + 1) - np.log1p(taken[i])) for i in rows[row]) for row in left
        }
        best = min(left, key=lambda row: (-gains[row], row))
        order.append(best)
        left.remove(best)
        taken[rows[best]] += 1
    return order


def random_rows(seed: int, n: int, items: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(items, rng.integers(0, 5), replace=False).tolist()) for _ in range(n)]


def test_three_rows_by_hand() -> None:
    """Two kites and a dog of equal weight: log 2, log 2, and the second kite log 3 − log 2."""
    level = greedy_levels(matches_of([[0], [0], [1]]), np.ones(2))
    np.testing.assert_allclose(level, [np.log(2), np.log(3) - np.log(2), np.log(2)])


@pytest.mark.parametrize("seed", range(5))
def test_levels_order_rows_as_the_slow_greedy_choice_does(seed: int) -> None:
    rows, weights = random_rows(seed, 60, 8), np.random.default_rng(seed).random(8) + 0.1
    level = greedy_levels(matches_of(rows), weights)
    order = slow_order(rows, weights)
    assert np.all(np.diff(level[order]) <= 1e-12), "gains never rise"
    assert np.argsort(-np.round(level, 12), kind="stable").tolist() == order


@pytest.mark.parametrize("seed", range(5))
def test_a_late_row_comes_at_a_level_of_its_own_gain_and_not_before_its_twin(seed: int) -> None:
    rows, weights = random_rows(seed, 300, 12), np.random.default_rng(seed).random(12) + 0.1
    matches = matches_of(rows)
    level = greedy_levels(matches, weights)
    levels, bounds = levels_of_items(matches, level, 12)
    late = level_of(matches, weights, levels, bounds)
    assert (late <= level * (1 + 1e-8)).all()
    for row in range(0, 300, 37):  # its gain where the choice stands at that level
        above = [int((levels[bounds[item] : bounds[item + 1]] > late[row] * (1 + 1e-9)).sum()) for item in rows[row]]
        gain = sum(weights[i] * (np.log1p(m + 1) - np.log1p(m)) for i, m in zip(rows[row], above, strict=True))
        assert gain >= late[row] * (1 - 1e-8)
    np.testing.assert_array_equal(level_of(matches_of(rows[:1]), weights, levels, bounds), late[:1])


def test_a_late_row_of_a_full_concept_comes_after_those_that_were_there() -> None:
    matches = matches_of([[0]] * 9 + [[1]])
    level = greedy_levels(matches, np.ones(3))
    levels, bounds = levels_of_items(matches, level, 3)
    full, rare, new = level_of(matches_of([[0], [1], [2]]), np.ones(3), levels, bounds)
    assert full < level[:9].min() + 1e-12
    assert full == pytest.approx(np.log(11) - np.log(10))
    assert rare == pytest.approx(np.log(2), rel=1e-6) or rare < np.log(2)
    assert new == pytest.approx(np.log(2))
