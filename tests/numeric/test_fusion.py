"""Logistic and min–max fusion (formulas.md §1.7, §2.4, §13.7)."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import spearmanr

from curation_assets.numeric.fusion import FusionWeights, fit_logistic_fusion, fuse


def noisy_ratings(seed: int, n: int = 244) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.uniform(size=(n, 2))
    ratings = np.clip(np.round(2.2 * scores[:, 0] + 1.1 * scores[:, 1] + rng.normal(0, 0.6, n)), 0, 3)
    return scores, ratings


def test_fit_is_the_maximum_of_the_likelihood() -> None:
    """Twin: a general optimiser on the log-likelihood written out."""
    scores, ratings = noisy_ratings(0)
    fitted = fit_logistic_fusion(scores, ratings, names=("vba", "sba"))
    used = ratings != np.median(ratings)
    x, sign = scores[used], np.where(ratings[used] > np.median(ratings), 1.0, -1.0)

    def loss(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -sign * (x @ w[:2] + w[2])).sum())

    slow = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose([*fitted.weights, fitted.intercept], slow, rtol=1e-4)
    assert not fitted.is_regularised
    assert fitted.n_used + fitted.n_ties == 244
    assert fitted.n_ties == int((ratings == fitted.median).sum())


def test_fuse_is_the_sigmoid_and_keeps_gaps() -> None:
    weights = FusionWeights((2.0, -1.0), 0.5, ("vba", "sba"), 10, 5, 0, 0, 1.0, False)
    fused = fuse(np.array([[0.5, 0.5], [np.nan, 0.5]]), weights)
    assert fused[0] == pytest.approx(expit(1.0))
    assert np.isnan(fused[1])
    assert FusionWeights.from_dict(weights.to_dict()) == weights
    with pytest.raises(ValueError, match=r"expected scores \(N, 2\)"):
        fuse(np.zeros((3, 1)), weights)


def test_ties_with_the_median() -> None:
    scores = np.array([[0.1], [0.5], [0.4], [0.45], [0.6], [0.35], [0.9]])
    ratings = np.array([0, 1, 1, 1, 2, 2, 3])  # median 1: one below, three ties, three above
    drop = fit_logistic_fusion(scores, ratings)
    positive = fit_logistic_fusion(scores, ratings, ties="pos")
    negative = fit_logistic_fusion(scores, ratings, ties="neg")
    assert (drop.n_used, drop.n_positive, drop.n_ties) == (4, 3, 3)
    assert (positive.n_used, positive.n_positive) == (7, 6)
    assert (negative.n_used, negative.n_positive) == (7, 3)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1, 0.2, 0.8, 0.9], True),  # separable
        ([0.1, 0.5, 0.5, 0.9], True),  # touching: still no finite fit
        ([0.1, 0.8, 0.2, 0.9], False),  # overlapping
        ([0.5, 0.5, 0.5, 0.5], True),  # constant: not unique
    ],
)
def test_regularised_exactly_where_no_unpenalised_fit_exists(scores: list[float], expected: bool) -> None:
    fitted = fit_logistic_fusion(np.array(scores)[:, None], np.array([0, 0, 1, 1]))
    assert fitted.is_regularised is expected
    assert np.isfinite([*fitted.weights, fitted.intercept]).all()


def test_incomplete_rows_are_counted_and_left_out() -> None:
    scores, ratings = noisy_ratings(1)
    whole = fit_logistic_fusion(scores, ratings)
    padded = fit_logistic_fusion(np.vstack([scores, [[np.nan, 0.5]]]), np.append(ratings, 3.0))
    assert padded.n_incomplete == 1
    assert padded.weights == pytest.approx(whole.weights)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="above and below the median"):
        fit_logistic_fusion(np.array([[0.1], [0.2], [0.3]]), np.array([1, 1, 1]))


def test_a_penalty_shrinks_the_weights_and_keeps_the_order() -> None:
    rng = np.random.default_rng(3)
    scores = rng.random((300, 2))
    ratings = scores @ [3.0, 1.0] + rng.normal(0, 0.3, 300)
    free, bound = fit_logistic_fusion(scores, ratings), fit_logistic_fusion(scores, ratings, l2=1.0)
    assert not free.is_regularised
    assert bound.is_regularised
    assert max(bound.weights) < max(free.weights)
    assert spearmanr(fuse(scores, free), fuse(scores, bound)).statistic > 0.98
    with pytest.raises(ValueError, match="l2 must be 0"):
        fit_logistic_fusion(scores, ratings, l2=-1.0)
