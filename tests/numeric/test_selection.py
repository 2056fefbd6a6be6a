"""The rule of a cut: exact counts, DataComp's rule, ties and edges (formulas.md §2.4, §13.6)."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric import selection
from curation_assets.numeric.selection import (
    NOTHING,
    Cutoff,
    random_ranking,
    ranks,
    share_count,
    top_count,
    top_share_compat,
    value_of_rank,
)
from curation_assets.numeric.sorting import SMALL, argsort, argsort_descending, gather, positions

TENTHS = np.arange(1, 11) / 10
NAN = float("nan")


def ids(n: int) -> list[str]:
    return [f"{i:032x}" for i in range(n)]


@pytest.mark.parametrize(
    ("fraction", "threshold", "kept"), [(0.2, 0.8, 3), (0.3, 0.7, 4), (0.25, 0.8, 3), (0.0, 1.0, 1)]
)
def test_compat_is_the_reference_rule(fraction: float, threshold: float, kept: int) -> None:
    """formulas.md §13.6 on .1, .2, …, 1.0."""
    cutoff = top_share_compat(TENTHS, fraction)
    assert (cutoff.threshold, cutoff.passes(TENTHS).sum()) == (threshold, kept)


def test_compat_passes_all_ties() -> None:
    values = np.array([0.5, 0.9, NAN, 0.5, 0.5, 0.1])
    assert top_share_compat(values, 0.2).passes(values).tolist() == [True, True, False, True, True, False]


def test_compat_refuses_fraction_one_where_the_reference_crashes() -> None:
    with pytest.raises(ValueError, match=r"compat fraction must be in \[0, 1\), got 1"):
        top_share_compat(TENTHS, 1)
    with pytest.raises(ValueError, match="no sample has a value"):
        top_share_compat(np.array([NAN, NAN]), 0.5)


def test_the_best_of_ten() -> None:
    cutoff = top_count(TENTHS, 2)
    assert cutoff.passes(TENTHS).tolist() == [False] * 8 + [True] * 2
    assert cutoff == Cutoff(0.9, last_tie=8)
    assert ranks(TENTHS).tolist() == list(range(10, 0, -1))


def test_all_and_none_of_ten() -> None:
    assert top_count(TENTHS, 99).passes(TENTHS).all()
    assert top_count(TENTHS, 0) == top_count(np.zeros(0), 5) == NOTHING
    assert not NOTHING.passes(np.array([1.0, math.inf])).any()
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        top_count(TENTHS, -1)


@pytest.mark.parametrize("fraction", [0, -0.5, 1.1])
def test_a_share_is_above_0_and_at_most_1(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"fraction must be in \(0, 1\], got {fraction}"):
        share_count(10, fraction)


@pytest.mark.parametrize(
    ("n", "fraction", "k"), [(10, 0.25, 3), (10, 0.24, 2), (100, 0.285, 29), (1000, 0.0015, 2), (3, 0.1, 0), (7, 1, 7)]
)
def test_rounds_half_up_as_written(n: int, fraction: float, k: int) -> None:
    assert share_count(n, fraction) == k


def test_ties_go_by_position() -> None:
    values = np.array([0.9, 0.5, 0.5, 0.5, 0.9])
    cutoff = top_count(values, 4)
    assert cutoff == Cutoff(0.5, last_tie=2)
    assert cutoff.passes(values).tolist() == [True, True, True, False, True]
    assert ranks(values).tolist() == [1, 3, 4, 5, 2]


def test_gaps_never_pass_and_have_no_rank() -> None:
    values = np.array([NAN, 0.1, NAN])
    assert top_count(values, 3).passes(values).tolist() == [False, True, False]
    assert Cutoff(-math.inf).passes(values).tolist() == [False, True, False]
    assert ranks(values).tolist() == [0, 1, 0]


def test_a_threshold_passes_equal_values() -> None:
    assert Cutoff(0.8).passes(TENTHS).sum() == 3


@given(
    st.lists(st.sampled_from([0.0, -0.0, 0.5, NAN]) | st.floats(-1, 1) | st.just(NAN), max_size=30), st.integers(0, 32)
)
def test_what_passes_are_the_first_ranks_of_a_sorted_list(numbers: list[float], count: int) -> None:
    values = np.array(numbers, dtype=np.float64)
    order = sorted((i for i, value in enumerate(numbers) if value == value), key=lambda i: (-numbers[i], i))
    rank = ranks(values)
    assert rank.dtype == np.uint32
    assert rank.tolist() == [order.index(i) + 1 if i in order else 0 for i in range(len(numbers))]
    cutoff = top_count(values, count)
    assert sorted(np.flatnonzero(cutoff.passes(values)).tolist()) == sorted(order[:count])
    if order[:count]:
        last = order[:count][-1]
        assert (cutoff.threshold, cutoff.last_tie) == (numbers[last], last)
        assert math.copysign(1, cutoff.threshold) == math.copysign(1, numbers[last])


@pytest.mark.parametrize("held", [0, 3, 1_000])
@given(
    numbers=st.lists(st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 0.25, 0.5, 0.5000001]), min_size=1),
    data=st.data(),
)
def test_the_value_of_a_rank_of_parts_is_that_of_the_sorted_list(
    held: int, numbers: list[float], data: st.DataObject
) -> None:
    """However few values of a bucket are held at once; what has no value has no rank."""
    rank = data.draw(st.integers(1, len(numbers)))
    parts = np.array_split(np.array([*numbers, NAN]), 3)
    best = sorted(numbers, reverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SORTED_AT_ONCE", held)
        value, better = value_of_rank(lambda: parts, rank)
    assert value == best[rank - 1]
    assert better == sum(number > value for number in numbers)


def test_random_ranking_is_uniform_and_of_the_id_alone() -> None:
    values = random_ranking(ids(4000), seed=0)
    assert values.mean() == pytest.approx(0.5, abs=0.02)  # standard error .0046
    assert random_ranking(ids(4000)[7:8], seed=0)[0] == values[7]
    assert abs(np.corrcoef(values, random_ranking(ids(4000), seed=1))[0, 1]) < 0.06


KEYS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda rng: rng.normal(size=70_001),
    "normal, sorted in halves": lambda rng: rng.normal(size=2 * SMALL + 1),
    "few values, sorted in halves": lambda rng: rng.integers(-3, 3, SMALL + 1) / 7,
    "ascending, sorted in halves": lambda rng: np.arange(SMALL + 1, dtype=np.uint64),
    "single precision": lambda rng: rng.normal(size=70_001).astype(np.float32).astype(np.float64),
    "few values": lambda rng: rng.integers(-3, 3, 70_001) / 7,
    "values that differ in the last bits": lambda rng: 0.5 + rng.integers(0, 99, 70_001) * 2.0**-52,
    "wide and narrow": lambda rng: np.append(rng.normal(size=9_000) * 1e300, 1 + rng.integers(0, 9, 9_000) * 2.0**-50),
    "one value": lambda rng: np.full(70_001, 0.5),
    "infinities and zeros": lambda rng: rng.choice([-np.inf, -0.0, 0.0, 5e-324, -5e-324, np.inf], 1_000),
    "unsigned": lambda rng: rng.integers(0, 2**64 - 1, 70_001, dtype=np.uint64, endpoint=True),
    "unsigned in clusters": lambda rng: rng.integers(0, 3, 9_000, dtype=np.uint64) << 62 | rng.integers(
        0, 40, 9_000, dtype=np.uint64
    ),
    "ends": lambda rng: rng.choice(np.array([0, 2**64 - 1], dtype=np.uint64), 100),
    "two": lambda rng: np.array([0.2, 0.1]),
    "one": lambda rng: np.array([7], dtype=np.uint64),
    "none": lambda rng: np.zeros(0),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_argsort_is_numpys_stable_one(kind: str) -> None:
    keys = KEYS[kind](np.random.default_rng(0))
    assert np.array_equal(argsort(keys), np.argsort(keys, kind="stable"))


@given(st.lists(st.floats(allow_nan=False) | st.sampled_from([0.1, -0.1, 0.0, -0.0])))
def test_argsort_of_any_floats(values: list[float]) -> None:
    keys = np.array(values, dtype=np.float64)
    assert np.array_equal(argsort(keys), np.argsort(keys, kind="stable"))


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**63, 2**63 + 3)))
def test_argsort_of_any_unsigned(values: list[int]) -> None:
    keys = np.array(values, dtype=np.uint64)
    assert np.array_equal(argsort(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_argsort_refuses_other_numbers(kind: type) -> None:
    with pytest.raises(TypeError, match="expected uint64 or float64"):
        argsort(np.array([-1, 1], dtype=kind))


@given(st.lists(st.floats() | st.sampled_from([0.1, -0.1, 0.0, -0.0, float("inf"), float("-inf"), float("nan")])))
def test_argsort_descending_puts_what_has_no_value_last(values: list[float]) -> None:
    keys = np.array(values, dtype=np.float64)
    expected = sorted(range(len(keys)), key=lambda i: (np.isnan(keys[i]), 0.0 if np.isnan(keys[i]) else -keys[i], i))
    assert argsort_descending(keys).tolist() == expected


@pytest.mark.parametrize("size", [0, 5, 2_200_001])
def test_gather_is_indexing(size: int) -> None:
    order = np.random.default_rng(0).permutation(size).astype(np.uint32)
    for column in (np.arange(size), np.linspace(0, 1, size), np.arange(size).astype(np.int8)):
        got = gather(column, order)
        assert got.dtype == column.dtype
        assert np.array_equal(got, column[order])


@pytest.mark.parametrize("size", [3, 2_200_001])
def test_gather_counts_from_the_end_and_refuses_what_is_not_there(size: int) -> None:
    codes = np.random.default_rng(0).integers(-1, 4, size).astype(np.int8)
    words = np.array([7, 5, 3, 2, 1])
    assert np.array_equal(gather(words, codes), words[codes])
    for wrong in (5, -6):
        codes[-1] = wrong
        with pytest.raises(IndexError):
            gather(words, codes)


@pytest.mark.parametrize("size", [0, 5, 2_200_001])
def test_positions_are_numpys_in_four_bytes(size: int) -> None:
    mask = np.random.default_rng(0).random(size) < 0.3
    found = positions(mask)
    assert found.dtype == np.uint32
    assert np.array_equal(found, np.flatnonzero(mask))
