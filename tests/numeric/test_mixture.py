"""Shares of groups exact to one entry, epochs within their limit, and edges that split a group where sorting would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.mixture import edge_of, entries_of_groups, is_inside, weights_of_sizes


@pytest.mark.parametrize(
    ("rows", "weights", "total", "epochs", "expected"),
    [
        ([1000, 1000], [0.6, 0.4], 100, 4, [60, 40]),
        ([10, 1000], [0.5, 0.5], 100, 4, [40, 60]),  # ten rows four times, the rest passes on
        ([10, 10, 1000], [1, 1, 2], 200, 4, [40, 40, 120]),
        ([10, 20], [0.5, 0.5], 1000, 2, [20, 40]),  # all full: fewer than asked
        ([5, 5, 5], [1, 1, 1], 10, 4, [4, 3, 3]),  # equal remainders: the first group
        ([5, 0, 5], [1, 1, 1], 4, 4, [2, 0, 2]),
        ([5, 5], [1, 0], 4, 1, [4, 0]),
    ],
)
def test_worked_examples(rows: list[int], weights: list[float], total: int, epochs: int, expected: list[int]) -> None:
    assert entries_of_groups(np.array(rows), np.array(weights, float), total, epochs).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0])), min_size=1, max_size=6),
    st.integers(1, 400),
    st.integers(1, 5),
)
def test_shares_are_those_of_a_water_level_to_one_entry(
    groups: list[tuple[int, float]], total: int, epochs: int
) -> None:
    rows, weights = np.array([size for size, _ in groups]), np.array([weight for _, weight in groups])
    entries = entries_of_groups(rows, weights, total, epochs)
    room = np.where(weights > 0, rows * epochs, 0)
    assert (entries <= room).all()
    assert entries.sum() == min(total, room.sum())
    low, high = 0.0, 1e6  # entries are min(room, level · weight) of one level: found by halving
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(room, level * weights).sum() < min(total, room.sum()) else (low, level)
    exact = np.minimum(room, high * weights)
    assert (np.abs(entries - exact) < 1 + 1e-6).all()


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.5, 0.9]), st.integers(0, 2**64 - 1)), min_size=1, max_size=30))
def test_an_edge_splits_where_sorting_would(rows: list[tuple[float, int]]) -> None:
    rows = list({key: (value, key) for value, key in rows}.values())
    values, keys = np.array([value for value, _ in rows]), np.array([key for _, key in rows], np.uint64)
    best_first = sorted(range(len(rows)), key=lambda row: (-rows[row][0], rows[row][1]))
    for extra in range(len(rows) + 1):
        inside = is_inside(values, keys, edge_of(values, keys, extra))
        assert np.flatnonzero(inside).tolist() == sorted(best_first[:extra])


def test_weights_of_sizes() -> None:
    rows = np.array([100, 400, 0])
    np.testing.assert_allclose(weights_of_sizes(rows, 0), [0.5, 0.5, 0])
    np.testing.assert_allclose(weights_of_sizes(rows, 0.5), [1 / 3, 2 / 3, 0])
    np.testing.assert_allclose(weights_of_sizes(rows, 1), [0.2, 0.8, 0])
