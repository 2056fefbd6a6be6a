"""Votes with abstention: bands that turn values into votes, and a label model that weighs the voters."""

from typing import NamedTuple

import numpy as np

KEEP, ABSTAIN, DROP = 1, 0, -1
ROUNDS, TOLERANCE = 500, 1e-9
PSEUDO_COUNT = 1.0  # votes of each kind that every voter is credited with: none is ever certain


def band_votes(values: np.ndarray, keep_from: float, drop_below: float) -> np.ndarray:
    """(N,) values → (N,) int8: KEEP from `keep_from` on, DROP below `drop_below`, between both and for NaN ABSTAIN.

    Raises ValueError where the band is upside down.
    """
    if keep_from < drop_below:
        raise ValueError(f"keep_from must be at least drop_below, got {keep_from} and {drop_below}")
    votes = np.where(values >= keep_from, KEEP, np.where(values < drop_below, DROP, ABSTAIN))
    return np.where(np.isnan(values), ABSTAIN, votes).astype(np.int8)


class Voters(NamedTuple):
    """What a label model learned: how often samples are good, and how each voter votes when it does not abstain."""

    prior: float  # P(good)
    keep_if_good: np.ndarray  # (V,) P(KEEP | good, votes)
    keep_if_bad: np.ndarray  # (V,) P(KEEP | bad, votes)


def fit_voters(votes: np.ndarray) -> Voters:
    """Dawid and Skene (1979) for two classes, abstention taken as missing: EM from the majority's opinion.

    (N, V) votes. Voters are held to be independent given the class, and most of them better than chance: neither can be
    seen from votes alone. Patterns of votes are counted once, so the cost does not grow with N. Raises ValueError where
    nobody votes.
    """
    votes = np.asarray(votes, dtype=np.int8)
    if votes.ndim != 2 or not (votes != ABSTAIN).any():
        raise ValueError(f"a label model needs votes (N, V), at least one that is no abstention, got {votes.shape}")
    patterns, counts = np.unique(votes, axis=0, return_counts=True)  # (M, V), (M,)
    keeps, drops = patterns == KEEP, patterns == DROP
    good = (keeps.sum(axis=1) + 0.5) / ((patterns != ABSTAIN).sum(axis=1) + 1.0)  # (M,) share of votes to keep
    voters = _voters(good, keeps, drops, counts)
    for _ in range(ROUNDS):
        again = _posterior(patterns, voters)
        if np.abs(again - good).max() < TOLERANCE:
            break
        good, voters = again, _voters(again, keeps, drops, counts)
    return voters


def _voters(good: np.ndarray, keeps: np.ndarray, drops: np.ndarray, counts: np.ndarray) -> Voters:
    def keep_rate(weight: np.ndarray) -> np.ndarray:
        kept, dropped = weight @ keeps, weight @ drops  # (V,) expected votes
        return (kept + PSEUDO_COUNT) / (kept + dropped + 2 * PSEUDO_COUNT)

    is_heard = (keeps | drops).any(axis=1)
    heard = counts[is_heard]
    prior = float((heard @ good[is_heard] + PSEUDO_COUNT) / (heard.sum() + 2 * PSEUDO_COUNT))
    return Voters(prior, keep_rate(counts * good), keep_rate(counts * (1 - good)))


def keep_posterior(votes: np.ndarray, voters: Voters) -> np.ndarray:
    """P(good | votes). (N, V) → (N,) in (0, 1); the prior where all abstain."""
    return _posterior(np.asarray(votes, dtype=np.int8), voters)


def _posterior(votes: np.ndarray, voters: Voters) -> np.ndarray:
    odds = np.log(voters.prior / (1 - voters.prior))
    if_keep = np.log(voters.keep_if_good / voters.keep_if_bad)  # (V,) evidence of a vote
    if_drop = np.log((1 - voters.keep_if_good) / (1 - voters.keep_if_bad))
    evidence = odds + (votes == KEEP) @ if_keep + (votes == DROP) @ if_drop  # (N,)
    return np.asarray(1.0 / (1.0 + np.exp(-evidence)))
