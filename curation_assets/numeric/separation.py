"""Separation of two groups by a number: area under the ROC curve, and its interval."""

import numpy as np
import scipy  # whose parts load on first use: scipy.stats takes most of a second


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
    ranks = scipy.stats.rankdata(values)  # (N,) average ranks
    return float((ranks[is_positive].sum() - p * (p + 1) / 2) / (p * q))


def auc_interval(auc: float, positives: int, negatives: int, level: float = 0.95) -> tuple[float, float]:
    """(low, high) within [0, 1] of an AUC measured on so many positives and negatives.

    Newcombe 2006 (Statistics in Medicine 25), method 5: the AUCs θ with |auc − θ| ≤ z · se(θ), Hanley & McNeil's
    standard error with both group sizes replaced by their mean in its second term. It has a width at 0 and 1 too, and
    is wider than needed for values with many ties. Raises ValueError for an AUC outside [0, 1], an empty group, or a
    level outside (0, 1).
    """
    if not 0 <= auc <= 1 or positives < 1 or negatives < 1 or not 0 < level < 1:
        raise ValueError(
            f"expected an auc in [0, 1], a positive and a negative at least, and a level in (0, 1); got {auc}, "
            f"{positives}, {negatives}, {level}"
        )
    z = float(scipy.stats.norm.ppf(0.5 + level / 2))
    rest = (positives + negatives) / 2 - 1

    def excess(theta: float) -> float:
        spread = 1 + rest * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return (auc - theta) ** 2 - z**2 * theta * (1 - theta) * spread / (positives * negatives)

    # excess is < 0 at auc itself, and > 0 at 0 and at 1 where auc is not there
    low = 0.0 if auc == 0 else float(scipy.optimize.brentq(excess, 0.0, min(auc, 1 - 1e-12)))
    high = 1.0 if auc == 1 else float(scipy.optimize.brentq(excess, max(auc, 1e-12), 1.0))
    return low, high
