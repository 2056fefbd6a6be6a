"""Separation of two groups by a number: area under the ROC curve."""

import numpy as np
from scipy.stats import rankdata


def roc_auc(values: np.ndarray, is_positive: np.ndarray) -> float:
    """Chance that a random positive has a higher value than a random negative; ties count half. (N,), (N,) → [0, 1].

    The Mann–Whitney statistic over P · Q. NaN values are left out. Raises ValueError for unequal shapes, or when a
    group is then empty.
    """
    values, is_positive = np.asarray(values, dtype=np.float64), np.asarray(is_positive, dtype=bool)
    if values.shape != is_positive.shape or values.ndim != 1:
        raise ValueError(f"expected values (N,) and is_positive (N,), got {values.shape} and {is_positive.shape}")
    is_valued = ~np.isnan(values)
    values, is_positive = values[is_valued], is_positive[is_valued]
    p, q = int(is_positive.sum()), int((~is_positive).sum())
    if p == 0 or q == 0:
        raise ValueError(f"AUC needs values in both groups, got {p} positive and {q} negative")
    ranks = rankdata(values)  # (N,) average ranks
    return float((ranks[is_positive].sum() - p * (p + 1) / 2) / (p * q))
