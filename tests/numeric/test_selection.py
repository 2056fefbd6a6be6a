"""The rule of a cut: exact counts, DataComp's rule, ties and edges (formulas.md §2.4, §13.6)."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric import selection
from curation_assets.numeric.selection import (
    MADE_AGAIN,
    Cutoff,
    best,
    compat_rank,
    id_of_rank,
    random_ranking,
    share_count,
    value_of_rank,
)

TENTHS = np.arange(1, 11) / 10
NAN = float("nan")


def ids(n: int) -> pl.Series:
    return pl.Series([f"{i:032x}" for i in range(n)], dtype=pl.String)


@pytest.mark.parametrize(
    ("fraction", "threshold", "kept"), [(0.2, 0.8, 3), (0.3, 0.7, 4), (0.25, 0.8, 3), (0.0, 1.0, 1)]
)
def test_compat_is_the_reference_rule(fraction: float, threshold: float, kept: int) -> None:
    """formulas.md §13.6 on .1, .2, …, 1.0."""
    value, better = value_of_rank(lambda: [TENTHS], compat_rank(10, fraction))
    assert (value, better) == (threshold, kept - 1)
    assert Cutoff(value).passes(TENTHS, ids(10)).sum() == kept


def test_compat_refuses_fraction_one_where_the_reference_crashes() -> None:
    with pytest.raises(ValueError, match=r"compat fraction must be in \[0, 1\), got 1"):
        compat_rank(10, 1)
    with pytest.raises(ValueError, match="no sample has a value"):
        compat_rank(0, 0.5)


@pytest.mark.parametrize("fraction", [0, -0.5, 1.1])
def test_a_share_is_above_0_and_at_most_1(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"fraction must be in \(0, 1\], got {fraction}"):
        share_count(10, fraction)


@pytest.mark.parametrize(
    ("n", "fraction", "k"), [(10, 0.25, 3), (10, 0.24, 2), (100, 0.285, 29), (1000, 0.0015, 2), (3, 0.1, 0), (7, 1, 7)]
)
def test_rounds_half_up_as_written(n: int, fraction: float, k: int) -> None:
    assert share_count(n, fraction) == k


@pytest.mark.parametrize(
    ("cutoff", "passing"),
    [
        (Cutoff(0.5), [0, 1, 2, 4]),  # values as good as the threshold pass, what has none never does
        (Cutoff(0.5, f"{1:032x}"), [0, 1, 4]),  # of the ties those up to an id
        (Cutoff(0.5, f"{3:032x}"), [0, 1, 2, 4, 3]),  # and its row where its value was made again
        (Cutoff(-math.inf), [0, 1, 2, 3, 4, 5]),
        (Cutoff(math.inf), [4]),
        (Cutoff(math.inf, f"{2:032x}"), []),
    ],
)
def test_what_passes_a_cut(cutoff: Cutoff, passing: list[int]) -> None:
    values = np.array([0.9, 0.5, 0.5, 0.5 - MADE_AGAIN / 2, math.inf, -math.inf, NAN])
    assert set(np.flatnonzero(cutoff.passes(values, ids(7)))) == set(passing)


NUMBERS = st.lists(st.sampled_from([0.0, -0.0, 0.5, NAN]) | st.floats(-1, 1) | st.just(NAN), max_size=30)


@given(NUMBERS, st.integers(0, 32))
def test_the_best_are_the_first_of_a_sorted_list(numbers: list[float], count: int) -> None:
    """What has no value is never among them; ties go by position."""
    order = sorted((i for i, value in enumerate(numbers) if value == value), key=lambda i: (-numbers[i], i))
    assert sorted(np.flatnonzero(best(np.array(numbers, dtype=np.float64), count))) == sorted(order[:count])


def test_a_count_of_the_best_is_at_least_0() -> None:
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        best(TENTHS, -1)


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
    ordered = sorted(numbers, reverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SORTED_AT_ONCE", held)
        value, better = value_of_rank(lambda: parts, rank)
    assert value == ordered[rank - 1]
    assert better == sum(number > value for number in numbers)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40, unique=True), st.data())
def test_the_id_of_a_rank_of_parts_is_that_of_the_sorted_list(numbers: list[int], data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, len(numbers)))
    texts = [f"{number:032x}" for number in numbers]
    parts = (pl.Series(texts[at : at + 3], dtype=pl.String) for at in range(0, len(texts) + 1, 3))
    assert id_of_rank(parts, rank) == sorted(texts)[rank - 1]


def test_random_ranking_is_uniform_and_of_the_id_alone() -> None:
    texts = ids(4000).to_list()
    values = random_ranking(texts, seed=0)
    assert values.mean() == pytest.approx(0.5, abs=0.02)  # standard error .0046
    assert random_ranking(texts[7:8], seed=0)[0] == values[7]
    assert abs(np.corrcoef(values, random_ranking(texts, seed=1))[0, 1]) < 0.06
