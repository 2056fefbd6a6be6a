"""Fusion of several scores into one: logistic regression on ratings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy  # whose parts load on first use: scipy.stats takes most of a second

Ties = Literal["drop", "pos", "neg"]


@dataclass(frozen=True)
class FusionWeights:
    """σ(weights · scores + intercept), with what the fit saw."""

    weights: tuple[float, ...]  # (K,) in the order of the score columns
    intercept: float
    names: tuple[str, ...]  # (K,) the score columns
    n_used: int
    n_positive: int  # of those used, rated above the median
    n_ties: int  # ratings equal to the median
    n_incomplete: int  # left out: a score or the rating is missing
    median: float  # of the ratings, in their unit
    is_regularised: bool  # L2: requested, or because the classes can be separated or a column is redundant

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a table or a JSON file."""
        return {**vars(self), "weights": list(self.weights), "names": list(self.names)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "FusionWeights":
        """Inverse of `to_dict`."""
        return cls(**{**content, "weights": tuple(content["weights"]), "names": tuple(content["names"])})


def fit_logistic_fusion(
    scores: np.ndarray,
    ratings: np.ndarray,
    *,
    ties: Ties = "drop",
    l2: float = 0.0,
    names: Sequence[str] | None = None,
) -> FusionWeights:
    """Logistic regression of "rated above the median" on the scores. ICC §4.3, formulas.md §1.7.

    `scores` (N, K), higher is better; `ratings` (N,). Rows with a NaN are left out and counted, before the median is
    taken. Ratings equal to the median are dropped, or taken as positive or negative. `l2` is the
    penalty 1 / C; 0 is the unpenalised fit, and where that is not finite (separable classes, redundant columns) C = 1.
    Raises ValueError for bad shapes, an unknown `ties`, or when one of the two classes is empty.
    """
    scores, ratings = np.asarray(scores, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    if scores.ndim != 2 or ratings.shape != scores.shape[:1]:
        raise ValueError(f"expected scores (N, K) and ratings (N,), got {scores.shape} and {ratings.shape}")
    if l2 < 0:
        raise ValueError(f"l2 must be 0 (no penalty) or above, got {l2}")
    if ties not in ("drop", "pos", "neg"):
        raise ValueError(f"ties must be 'drop', 'pos' or 'neg', got {ties!r}")
    names = tuple(names) if names is not None else tuple(f"score_{k}" for k in range(scores.shape[1]))
    if len(names) != scores.shape[1]:
        raise ValueError(f"expected {scores.shape[1]} names, got {list(names)}")
    is_complete = np.isfinite(scores).all(axis=1) & np.isfinite(ratings)
    n_incomplete = int((~is_complete).sum())
    scores, ratings = scores[is_complete], ratings[is_complete]
    if len(ratings) == 0:
        raise ValueError(f"no sample has all of {list(names)} and a rating ({n_incomplete} incomplete rows)")
    median = float(np.median(ratings))
    is_tie = ratings == median
    is_positive = (ratings > median) | (is_tie if ties == "pos" else False)
    is_used = ~is_tie if ties == "drop" else np.ones(len(ratings), dtype=bool)
    x, y = scores[is_used], is_positive[is_used]
    if len(set(y.tolist())) < 2:
        raise ValueError(
            f"fusion needs ratings above and below the median {median}; got {int(y.sum())} above of {len(y)} used "
            f"({int(is_tie.sum())} ties, ties={ties!r}); rate more samples or set ties to 'pos' or 'neg'"
        )
    penalty = l2 or (1.0 if _is_separable(x, y) or _is_redundant(x) else 0.0)
    from sklearn.linear_model import LogisticRegression  # takes a second to load

    model = LogisticRegression(C=1 / penalty if penalty else np.inf, tol=1e-10, max_iter=10_000).fit(x, y)
    return FusionWeights(
        weights=tuple(float(w) for w in model.coef_[0]),
        intercept=float(model.intercept_[0]),
        names=names,
        n_used=len(y),
        n_positive=int(y.sum()),
        n_ties=int(is_tie.sum()),
        n_incomplete=n_incomplete,
        median=median,
        is_regularised=penalty > 0,
    )


def fuse(scores: np.ndarray, weights: FusionWeights) -> np.ndarray:
    """σ(scores · weights + intercept). (N, K) → (N,) in [0, 1]; NaN where a score is NaN. ICC §4.3."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != len(weights.weights):
        raise ValueError(f"expected scores (N, {len(weights.weights)}) for {weights.names}, got {scores.shape}")
    return scipy.special.expit(scores @ np.array(weights.weights) + weights.intercept)  # (N,)


def held_out_fusion(
    scores: np.ndarray,
    ratings: np.ndarray,
    rng: np.random.Generator,
    *,
    folds: int = 5,
    ties: Ties = "drop",
    l2: float = 0.0,
) -> np.ndarray:
    """Fused scores by weights that have not seen the row's own rating. (N, K), (N,) → (N,) in [0, 1], NaN for gaps.

    Raises ValueError for folds outside [2, N], and as `fit_logistic_fusion` does on what is left of a fold.
    """
    scores, ratings = np.asarray(scores, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    if not 2 <= folds <= len(ratings):
        raise ValueError(f"folds must be in [2, {len(ratings)}], got {folds}")
    fold_of = rng.permutation(np.arange(len(ratings)) % folds)
    fused = np.full(len(ratings), np.nan)
    for fold in range(folds):
        held_out = fold_of == fold
        weights = fit_logistic_fusion(scores[~held_out], ratings[~held_out], ties=ties, l2=l2)
        fused[held_out] = fuse(scores[held_out], weights)
    return fused


def repeated_held_out_fusion(
    scores: np.ndarray, ratings: np.ndarray, *, repeats: int = 10, folds: int = 5, ties: Ties = "drop", l2: float = 0.0
) -> np.ndarray:
    """Mean of `held_out_fusion` over `repeats` divisions into folds, by seeds 0, 1, …: (N, K), (N,) → (N,) in [0, 1].

    Raises as `held_out_fusion` does.
    """
    seeds = map(np.random.default_rng, range(repeats))
    return np.mean([held_out_fusion(scores, ratings, rng, folds=folds, ties=ties, l2=l2) for rng in seeds], axis=0)


def _is_separable(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether some plane puts no sample on the wrong side and at least one strictly on its own (then no finite fit).

    A linear programme: maximise Σ t subject to sign · (w · x + c) ≥ t, 0 ≤ t ≤ 1; the optimum is 0 unless separable.
    """
    n, k = x.shape
    sign = np.where(y, 1.0, -1.0)[:, None]  # (N, 1)
    spread = x.std(axis=0)
    scaled = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)  # (N, K); scale does not matter to separability
    signed = sign * np.hstack([scaled, np.ones((n, 1))])  # (N, K + 1)
    result = scipy.optimize.linprog(
        c=np.concatenate([np.zeros(k + 1), -np.ones(n)]),
        A_ub=np.hstack([-signed, np.eye(n)]),
        b_ub=np.zeros(n),
        bounds=[(None, None)] * (k + 1) + [(0.0, 1.0)] * n,
    )
    assert result.status == 0, f"separability programme ended with status {result.status}: {result.message}"
    return bool(-result.fun > 1e-6)


def _is_redundant(x: np.ndarray) -> bool:
    """Whether a column is constant or a combination of the others: then the unpenalised fit is not unique."""
    design = np.hstack([x, np.ones((len(x), 1))])
    return bool(np.linalg.matrix_rank(design) < design.shape[1])
