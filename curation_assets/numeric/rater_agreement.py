"""How well raters agree with each other: Krippendorff's alpha and weighted kappa."""

from typing import Literal

import numpy as np

Level = Literal["nominal", "ordinal", "interval"]


def krippendorff_alpha(ratings: np.ndarray, level: Level = "ordinal") -> float:
    """1 − observed / expected disagreement, for any number of raters and gaps. (R, N) → a number ≤ 1.

    `ratings`: one row per rater, one column per item, NaN where a rater gave none; items with fewer than two ratings
    are left out. 1 is perfect, 0 what chance gives, below 0 systematic disagreement. Krippendorff 2011, Computing
    Krippendorff's Alpha-Reliability, part D.
    Raises ValueError for a bad shape, an unknown level, no item with two ratings, or ratings that are all equal.
    """
    ratings = np.asarray(ratings, dtype=np.float64)
    if ratings.ndim != 2:
        raise ValueError(f"expected ratings (raters, items), got shape {ratings.shape}")
    if level not in ("nominal", "ordinal", "interval"):
        raise ValueError(f"level must be nominal, ordinal or interval, got {level!r}")
    ratings = ratings[:, np.isfinite(ratings).sum(axis=0) >= 2]
    if ratings.size == 0:
        raise ValueError("no item was rated by two raters, so there is no agreement to measure")
    values = np.unique(ratings[np.isfinite(ratings)])
    if len(values) == 1:
        raise ValueError(f"all ratings are {values[0]:g}, so chance agreement is perfect and alpha has no value")
    counts = np.stack([(ratings == value).sum(axis=0) for value in values], axis=1)  # (N, V) of each value per item
    weights = 1 / (counts.sum(axis=1, keepdims=True) - 1)
    coincidences = counts.T @ (counts * weights) - np.diag((counts * weights).sum(axis=0))  # (V, V)
    totals = coincidences.sum(axis=0)  # (V,)
    chance = (np.outer(totals, totals) - np.diag(totals)) / (totals.sum() - 1)
    if level == "nominal":
        distances = 1.0 - np.eye(len(values))
    else:
        # of ordinal values by how many ratings lie between them
        places = values if level == "interval" else np.cumsum(totals) - totals / 2
        distances = np.subtract.outer(places, places) ** 2
    return float(1 - (coincidences * distances).sum() / (chance * distances).sum())


def weighted_kappa(first: np.ndarray, second: np.ndarray) -> tuple[float, int]:
    """Cohen's kappa with quadratic weights over items that both rated, and their number. (N,), (N,) NaN = not rated.

    NaN where fewer than two items are shared or both raters gave one and the same value throughout.
    """
    both = np.isfinite(first) & np.isfinite(second)
    x, y = np.asarray(first)[both], np.asarray(second)[both]
    if len(x) < 2 or len(np.union1d(x, y)) < 2:
        return float("nan"), len(x)
    values = np.union1d(x, y)
    from sklearn.metrics import cohen_kappa_score  # takes a second to load

    kappa = cohen_kappa_score(np.searchsorted(values, x), np.searchsorted(values, y), weights="quadratic")
    return float(kappa), len(x)
