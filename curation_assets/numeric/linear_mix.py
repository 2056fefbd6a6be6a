"""One linear layer over standardised signals (M-FLYT's form): weights given, or learned by a regression on ratings."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy  # whose parts load on first use


class LinearMix(NamedTuple):
    """A fitted mix of K signals."""

    means: np.ndarray  # (K,) over the pool
    sds: np.ndarray  # (K,) population; 1 of a constant signal
    weights: np.ndarray  # (K,) of standardised signals
    intercept: float
    rating_count: int


def means_and_sds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, K), NaN for gaps → (K,) means and (K,) population sds, 1 of a constant signal.

    Raises ValueError for a signal without any value.
    """
    if empty := np.flatnonzero(~np.isfinite(values).any(axis=0)).tolist():
        raise ValueError(f"signals without any value cannot be mixed: numbers {empty} of the mix")
    means, sds = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    return means, np.where(sds > 0, sds, 1.0)


def fit_linear_mix(
    values: np.ndarray, ratings: np.ndarray, model: Literal["logistic", "ridge"], l2: float, names: Sequence[str]
) -> LinearMix:
    """(N, K) values, (N,) ratings (NaN: none) → weights, by the rows that are rated and complete.

    Means and sds are of all rows. logistic: rated above the median of the ratings or not, ties left out; the penalty is
    l2 / 2 · ‖w‖² beside the summed loss. Raises ValueError for too few ratings, or all on one side.
    """
    means, sds = means_and_sds(values)
    used = np.isfinite(ratings) & np.isfinite(values).all(axis=1)
    x, y = ((values - means) / sds)[used], ratings[used]
    if len(y) <= values.shape[1]:
        raise ValueError(
            f"{len(y)} samples have a rating and all of {list(names)}; {values.shape[1]} weights need more of them"
        )
    if model == "ridge":
        from sklearn.linear_model import Ridge  # takes a second to load

        fitted = Ridge(alpha=l2).fit(x, y)
        return LinearMix(means, sds, fitted.coef_, float(fitted.intercept_), len(y))
    median = np.median(y)
    decided = y != median
    above = y[decided] > median
    if above.all() or not above.any():
        raise ValueError(f"ratings must lie above and below their median {median}; got {len(y)} of {np.unique(y)[:5]}")
    from sklearn.linear_model import LogisticRegression

    logistic = LogisticRegression(C=1 / l2 if l2 else np.inf, max_iter=1000).fit(x[decided], above)
    return LinearMix(means, sds, logistic.coef_[0], float(logistic.intercept_[0]), int(decided.sum()))


def linear_mix(
    values: np.ndarray, mix: LinearMix, model: Literal["logistic", "ridge"]
) -> tuple[np.ndarray, np.ndarray]:
    """(N, K) → (N,) P(above the median) or rating, and (N, K) what each signal adds to the sum. NaN for gaps."""
    parts = (values - mix.means) / mix.sds * mix.weights
    total = parts.sum(axis=1) + mix.intercept
    return (scipy.special.expit(total) if model == "logistic" else total), parts
