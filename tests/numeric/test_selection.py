"""Selection: exact counts, DataComp's rule, ties and edges (METHODS §2.4, §13.6, §13.9)."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.selection import (
    independent_iou,
    intersect,
    intersection_over_union,
    random_ranking,
    select_compat,
    select_threshold,
    select_top_count,
    select_top_fraction,
    share_count,
)
from curation_assets.numeric.sorting import argsort, gather

TENTHS = np.arange(1, 11) / 10


def ids(n: int) -> list[str]:
    return [f"{i:032x}" for i in range(n)]


@pytest.mark.parametrize(
    ("fraction", "threshold", "kept"), [(0.2, 0.8, 3), (0.3, 0.7, 4), (0.25, 0.8, 3), (0.0, 1.0, 1)]
)
def test_compat_is_the_reference_rule(fraction: float, threshold: float, kept: int) -> None:
    """METHODS §13.6 on .1, .2, …, 1.0."""
    selection = select_compat(TENTHS, ids(10), fraction)
    assert (selection.threshold, selection.kept_count) == (threshold, kept)


def test_compat_refuses_fraction_one_where_the_reference_crashes() -> None:
    with pytest.raises(ValueError, match=r"compat fraction must be in \[0, 1\), got 1"):
        select_compat(TENTHS, ids(10), 1)


def test_exact_fraction() -> None:
    selection = select_top_fraction(TENTHS, ids(10), 0.2)
    assert selection.is_kept.tolist() == [False] * 8 + [True] * 2
    assert selection.threshold == 0.9
    assert selection.rank.tolist() == list(range(10, 0, -1))
    np.testing.assert_allclose(selection.margin, TENTHS - 0.9)


def test_fraction_one_keeps_all_and_zero_is_refused() -> None:
    assert select_top_fraction(TENTHS, ids(10), 1).is_kept.all()
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\], got 0"):
        select_top_fraction(TENTHS, ids(10), 0)


@pytest.mark.parametrize(
    ("n", "fraction", "k"), [(10, 0.25, 3), (10, 0.24, 2), (100, 0.285, 29), (1000, 0.0015, 2), (3, 0.1, 0), (7, 1, 7)]
)
def test_rounds_half_up_as_written(n: int, fraction: float, k: int) -> None:
    assert share_count(n, fraction) == k


def test_ties_go_by_sample_id() -> None:
    selection = select_top_count(np.array([0.5, 0.5, 0.5, 0.9]), ["c" * 32, "a" * 32, "b" * 32, "d" * 32], 2)
    assert selection.is_kept.tolist() == [False, True, False, True]
    assert selection.boundary_id == "a" * 32


def test_gaps_are_never_kept() -> None:
    selection = select_top_count(np.array([np.nan, 0.1, np.nan]), ids(3), 3)
    assert selection.is_kept.tolist() == [False, True, False]
    assert selection.rank.tolist() == [0, 1, 0]
    assert np.isnan(selection.margin).tolist() == [True, False, True]


def test_threshold_keeps_equal_values() -> None:
    assert select_threshold(TENTHS, ids(10), 0.8).kept_count == 3


def test_duplicate_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="unique"):
        select_top_count(np.array([0.1, 0.2]), ["a" * 32] * 2, 1)


@given(st.lists(st.floats(-1, 1) | st.just(float("nan")), min_size=1, max_size=30), st.floats(0.001, 1), st.randoms())
def test_exact_count_whatever_the_ties_and_the_order(values: list[float], fraction: float, random) -> None:
    n = len(values)
    count = min(share_count(n, fraction), int((~np.isnan(values)).sum()))
    selection = select_top_fraction(np.array(values), ids(n), fraction)
    assert selection.kept_count == count
    order = list(range(n))
    random.shuffle(order)
    shuffled = select_top_fraction(np.array(values)[order], [ids(n)[i] for i in order], fraction)
    assert shuffled.is_kept.tolist() == selection.is_kept[order].tolist()
    worst_kept = np.array(values)[selection.is_kept]
    best_dropped = np.array(values)[~selection.is_kept]
    best_dropped = best_dropped[~np.isnan(best_dropped)]
    if len(worst_kept) and len(best_dropped):
        assert worst_kept.min() >= best_dropped.max()


def test_random_ranking_is_uniform_and_of_the_id_alone() -> None:
    values = random_ranking(ids(4000), seed=0)
    assert values.mean() == pytest.approx(0.5, abs=0.02)  # standard error .0046
    assert random_ranking(ids(4000)[7:8], seed=0)[0] == values[7]
    assert abs(np.corrcoef(values, random_ranking(ids(4000), seed=1))[0, 1]) < 0.06


def test_intersections() -> None:
    assert intersect(["b", "a"], ["c", "b"]) == ["b"]
    assert intersection_over_union(["a", "b"], ["b", "c"]) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="undefined"):
        intersection_over_union([], [])


@pytest.mark.parametrize(("fraction", "iou"), [(0.1, 0.0526), (0.2, 0.1111), (0.3, 0.1765)])
def test_baseline_overlap_of_independent_selections(fraction: float, iou: float) -> None:
    """METHODS §13.9: k / (2 − k), and what two random rankings really share."""
    assert independent_iou(fraction) == pytest.approx(iou, abs=5e-5)
    names = ids(4000)
    kept = [
        {names[i] for i in np.flatnonzero(select_top_fraction(random_ranking(names, seed), names, fraction).is_kept)}
        for seed in (1, 2)
    ]
    assert intersection_over_union(*kept) == pytest.approx(iou, abs=0.02)


KEYS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda rng: rng.normal(size=70_001),
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


@pytest.mark.parametrize("size", [0, 5, 200_001])
def test_gather_is_indexing(size: int) -> None:
    order = np.random.default_rng(0).permutation(size)
    columns = [np.arange(size), np.linspace(0, 1, size), np.arange(size, dtype=np.int8)]
    for got, column in zip(gather(columns, order), columns, strict=True):
        assert got.dtype == column.dtype
        assert np.array_equal(got, column[order])
