"""Ranked captions: ordered pairs, the Bradley–Terry loss, and how well scores agree with people's ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts load on first use: scipy.stats takes most of a second


def ranked_pairs(ranks: Sequence[float]) -> list[tuple[int, int]]:
    """(better, worse) positions of every two captions of one image. Rank 1 is best; a tie gives no pair.

    k different ranks give k (k − 1) / 2 pairs: 28, 36, 45 for k = 8, 9, 10 (formulas.md §9.2).
    """
    return [(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if ranks[i] < ranks[j]]


def bradley_terry_loss(margins: np.ndarray) -> float:
    """Mean of −log σ(margin) over pairs, margin = score of the better − score of the worse caption; nats.

    Compress & Align, eq. 1. Raises ValueError for no pair.
    """
    if not len(margins):
        raise ValueError("the Bradley–Terry loss needs at least one pair of captions with different ranks")
    return float(np.logaddexp(0.0, -np.asarray(margins, dtype=np.float64)).mean())


@dataclass(frozen=True)
class Preference:
    """Agreement of scores with ranks."""

    pair_accuracy: float  # share of pairs ordered alike, equal scores count half
    top1: float  # share of images whose highest score is among the captions ranked best
    chance_top1: float  # top1 to expect of random scores; pair_accuracy then is .5
    pairs: int
    images: int


def preference_accuracy(scores: Sequence[np.ndarray], ranks: Sequence[Sequence[float]]) -> Preference:
    """Per image (K,) scores, higher is better, and (K,) ranks, 1 is best. Compress & Align §4.4; formulas.md §9.4.

    People's ties for best all count as best; of captions that share the highest score, their share of best ones counts.
    Images without a pair carry no information and are left out. Raises ValueError where no image has one.
    """
    accuracy, top1, chance, pairs, images = 0.0, 0.0, 0.0, 0, 0
    for image_scores, image_ranks in zip(scores, ranks, strict=True):
        ordered = ranked_pairs(image_ranks)
        if not ordered:
            continue
        better, worse = (np.array([pair[side] for pair in ordered]) for side in (0, 1))
        margin = np.asarray(image_scores)[better] - np.asarray(image_scores)[worse]
        accuracy += float((margin > 0).sum() + 0.5 * (margin == 0).sum())
        is_best = np.asarray(image_ranks) == min(image_ranks)
        is_top = np.asarray(image_scores) == np.max(image_scores)
        top1 += float(is_best[is_top].mean())
        chance += float(is_best.mean())
        pairs += len(ordered)
        images += 1
    if not images:
        raise ValueError("no image has two captions of different ranks; there is nothing to agree with")
    return Preference(accuracy / pairs, top1 / images, chance / images, pairs, images)


@dataclass(frozen=True)
class RankAgreement:
    """How alike two raters order the captions of the images that both ranked."""

    kendall: float | None  # mean over images of tau-b; None where no image has a value
    pair_agreement: float | None  # share of pairs ordered alike, of those that neither ties; None where there is none
    pairs: int  # that neither ties
    images: int


def rank_agreement(ranks: Sequence[tuple[np.ndarray, np.ndarray]]) -> RankAgreement:
    """Two raters' ranks (K,), (K,) of each image. An image on which a rater ties all captions has no tau-b."""
    taus, alike, pairs = [], 0, 0
    for first, second in ranks:
        upper = np.triu_indices(len(first), 1)
        sides = [
            np.sign(np.subtract.outer(side_ranks, side_ranks))[upper]
            for side_ranks in (np.asarray(first), np.asarray(second))
        ]
        both = sides[0] * sides[1]
        alike += int((both > 0).sum())
        pairs += int((both != 0).sum())
        untied = float((sides[0] != 0).sum()) * float((sides[1] != 0).sum())
        if untied:
            taus.append(float(both.sum()) / untied**0.5)
    return RankAgreement(float(np.mean(taus)) if taus else None, alike / pairs if pairs else None, pairs, len(ranks))


def concordance(ranks: Sequence[Sequence[np.ndarray]]) -> float | None:
    """Kendall's W, corrected for ties, of several raters' ranks (R, K) of each image; its mean over images, [0, 1].

    Images with one rater or one caption, or on which every rater ties all captions, have no W; None where all are so.
    Kendall & Babington Smith 1939.
    """
    values = []
    for image in ranks:
        given = scipy.stats.rankdata(np.asarray(image, dtype=np.float64), axis=1)  # (R, K) average ranks
        raters, count = given.shape
        ties = sum(float((n**3 - n).sum()) for n in (np.unique(row, return_counts=True)[1] for row in given))
        spread = raters**2 * (count**3 - count) - raters * ties
        if raters > 1 and count > 1 and spread > 0:
            sums = given.sum(axis=0)
            values.append(12 * float(((sums - sums.mean()) ** 2).sum()) / spread)
    return float(np.mean(values)) if values else None


def mean_ranks(ranks: Sequence[Sequence[float]] | Sequence[np.ndarray]) -> list[float]:
    """Ranks of one image by several raters, (R, K) → (K,): their mean per caption; equal means stay ties."""
    return [float(value) for value in np.asarray(ranks, dtype=np.float64).mean(axis=0)]
