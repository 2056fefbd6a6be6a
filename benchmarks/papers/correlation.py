"""How well a measure of data sets predicts their scores (Rao et al.), with its interval."""

from collections.abc import Sequence

import numpy as np

from curation_assets.numeric.agreement import spearman


def predictive_correlation(
    averages: Sequence[float], scores: Sequence[float], adversarial: Sequence[bool]
) -> dict[str, float | None]:
    """Spearman correlation of a metric's average per training set with the sets' scores, ties averaged.

    `all_sets`, and `without_adversarial`, which leaves out sets such as RandomCaptions (formulas.md §8.5: report both).
    None where one side is constant or fewer than two sets are left.
    """
    keep = ~np.asarray(adversarial, dtype=bool)
    values, goals = np.asarray(averages, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    both = {"all_sets": spearman(values, goals), "without_adversarial": spearman(values[keep], goals[keep])}
    return {name: None if np.isnan(value) else value for name, value in both.items()}


def spearman_interval(correlation: float, n: int) -> tuple[float, float] | None:
    """95 % interval of a Spearman correlation of n pairs: tanh(atanh ρ ± 1.96 · √((1 + ρ²/2) / (n − 3))).

    Bonett & Wright 2000. It is wide for few pairs: ρ = .9 of 8 is .41 to .99. Resampling few pairs would give 1 to 1
    for a perfect order. None for fewer than 4 pairs or a perfect order, of which the formula knows nothing.
    """
    if n < 4 or abs(correlation) > 1 - 1e-9:
        return None
    half = 1.959964 * np.sqrt((1 + correlation**2 / 2) / (n - 3))
    centre = np.arctanh(correlation)
    return float(np.tanh(centre - half)), float(np.tanh(centre + half))
