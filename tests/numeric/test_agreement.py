"""Correlations with intervals, and AUC."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.agreement import (
    _correlations_of_draws,
    _draw_by_draw,
    agreement,
    agreement_difference,
    correlations,
    wilson_interval,
)
from curation_assets.numeric.separation import roc_auc


def slow_tau_b(x: np.ndarray, y: np.ndarray) -> float:
    """All pairs, by the definition."""
    concordance, x_pairs, y_pairs = 0.0, 0, 0
    for i in range(len(x)):
        for j in range(i):
            a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
            concordance += a * b
            x_pairs += a != 0
            y_pairs += b != 0
    return float(concordance / np.sqrt(x_pairs * y_pairs))


def test_perfect_and_reversed() -> None:
    x = np.array([0.1, 0.2, 0.4, 0.8])
    assert agreement(x, 2 * x + 1).pearson == pytest.approx(1)
    reversed_order = agreement(x, -(x**3))
    assert (reversed_order.spearman, reversed_order.kendall) == pytest.approx((-1, -1))
    assert reversed_order.intervals == {}


def test_tau_b_with_many_ties() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 40), rng.integers(0, 4, 40)
    assert agreement(x, y).kendall == pytest.approx(slow_tau_b(x, y))


def test_intervals_hold_the_truth_and_follow_the_rng() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=300)
    y = 0.6 * x + 0.8 * rng.normal(size=300)  # correlation .6
    found = agreement(x, y, np.random.default_rng(2), resamples=200)
    low, high = found.intervals["pearson"]
    assert low < 0.6 < high
    assert low < found.pearson < high
    assert high - low < 0.2  # about 4 · (1 − .36) / √300 = .15
    assert agreement(x, y, np.random.default_rng(2), resamples=200) == found


def test_gaps_are_counted() -> None:
    found = agreement(np.array([1, 2, 3, np.nan]), np.array([1.0, 3, 2, 2]))
    assert (found.n, found.n_incomplete) == (3, 1)


def test_constant_side_has_no_correlation() -> None:
    with pytest.raises(ValueError, match="the ratings are all equal"):
        agreement(np.arange(4), np.ones(4))


def test_auc_edges() -> None:
    assert roc_auc(np.array([0.9, 0.8, 0.1]), np.array([True, True, False])) == 1.0
    assert roc_auc(np.array([0.5, 0.5]), np.array([True, False])) == 0.5
    assert roc_auc(np.array([0.2, np.nan, 0.4]), np.array([True, True, False])) == 0.0
    with pytest.raises(ValueError, match="0 positive and 2 negative"):
        roc_auc(np.array([0.1, 0.2]), np.array([False, False]))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=25))
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    positives = [value for value, positive in rows if positive]
    negatives = [value for value, positive in rows if not positive]
    if not positives or not negatives:
        return
    pairs = [(p > q) + 0.5 * (p == q) for p in positives for q in negatives]
    values, is_positive = np.array([v for v, _ in rows]), np.array([p for _, p in rows])
    assert roc_auc(values, is_positive) == pytest.approx(np.mean(pairs))


def test_a_difference_is_that_of_the_two_and_pairs_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    ratings = rng.integers(0, 4, 200).astype(float)
    shared = rng.normal(size=200)  # noise that both have
    good, poor = ratings + shared, ratings + shared + 0.8 * rng.normal(size=200)
    found = agreement_difference(good, poor, ratings, np.random.default_rng(1), resamples=300)
    first, second = agreement(good, ratings), agreement(poor, ratings)
    assert found.kendall == pytest.approx(first.kendall - second.kendall)
    assert found.intervals["pearson"][0] > 0, "the same rows on both sides: a small difference shows"
    apart = [agreement(v, ratings, np.random.default_rng(1)).intervals["pearson"] for v in (good, poor)]
    assert apart[0][0] < apart[1][1], "which two intervals of their own do not tell"
    draws = np.random.default_rng(1).integers(0, 200, size=(300, 200))  # the slow twin
    by_hand = [correlations(good[d], ratings[d])[0] - correlations(poor[d], ratings[d])[0] for d in draws]
    assert found.intervals["pearson"] == pytest.approx(tuple(np.quantile(by_hand, [0.025, 0.975])))
    none = agreement_difference(good, good * 2, ratings, np.random.default_rng(1), resamples=50)
    assert none.intervals["spearman"] == (0.0, 0.0)
    gap = agreement_difference(np.r_[good, np.nan], np.r_[poor, 1.0], np.r_[ratings, 1.0], rng, resamples=50)
    assert (gap.n, gap.n_incomplete) == (200, 1)
    with pytest.raises(ValueError, match=r"expected three \(N,\)"):
        agreement_difference(good, poor[:3], ratings, rng)


def test_resamples_by_matrices_are_resamples_draw_by_draw() -> None:
    """The fast way against the obvious twin, with ties on both sides and a draw that is constant."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=40).round(1)
    y = np.clip(np.round(x + rng.normal(size=40)), 0, 3)
    rows = rng.integers(0, 40, size=(50, 40))
    rows[0] = 7
    fast, slow = _correlations_of_draws(x, y, rows), _draw_by_draw(x, y, rows)
    assert np.isnan(fast[0]).all()
    np.testing.assert_allclose(fast, slow, atol=1e-12)


def test_wilson_interval_is_the_one_of_scipy_and_stays_in_the_unit_range() -> None:
    from scipy.stats import binomtest

    for kept, n in ((0, 7), (3, 7), (7, 7), (45, 100)):
        expected = binomtest(kept, n).proportion_ci(method="wilson")
        assert wilson_interval(kept / n, n) == pytest.approx((expected.low, expected.high), abs=1e-6)
