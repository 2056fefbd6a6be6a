"""Concreteness: how well a caption score agrees with ratings, human or planted."""

from dataclasses import dataclass

import numpy as np

from curation_assets.numeric.agreement import Agreement, agreement


@dataclass(frozen=True)
class RatingGroup:
    """The mean value of the samples that share a rating."""

    rating: float
    mean_value: float
    n: int


@dataclass(frozen=True)
class ConcretenessReport:
    """Agreement with the ratings, and the mean value per rating (rising when the score is any good)."""

    agreement: Agreement
    by_rating: tuple[RatingGroup, ...]  # ratings ascending


def concreteness_report(
    values: np.ndarray, ratings: np.ndarray, rng: np.random.Generator | None = None, *, resamples: int = 1000
) -> ConcretenessReport:
    """Pearson, Spearman, Kendall tau-b of (N,) values with (N,) ratings, and means by rating. formulas.md §1.9.

    Pairs with a NaN are left out and counted. Raises ValueError as `agreement` does.
    """
    values, ratings = np.asarray(values, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    overall = agreement(values, ratings, rng, resamples=resamples)
    is_complete = np.isfinite(values) & np.isfinite(ratings)
    groups = []
    for rating in np.unique(ratings[is_complete]):
        members = values[is_complete & (ratings == rating)]
        groups.append(RatingGroup(float(rating), float(members.mean()), len(members)))
    return ConcretenessReport(overall, tuple(groups))
