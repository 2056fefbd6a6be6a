"""Bands, and a label model that finds good voters among bad ones without any label."""

import numpy as np
import pytest

from curation_assets.numeric.votes import ABSTAIN, DROP, KEEP, Voters, band_votes, fit_voters, keep_posterior


def test_a_band_keeps_drops_and_abstains() -> None:
    votes = band_votes(np.array([0.3, 0.23, 0.2, 0.19, 0.1, np.nan]), 0.23, 0.19)
    assert votes.tolist() == [KEEP, KEEP, ABSTAIN, ABSTAIN, DROP, ABSTAIN]
    with pytest.raises(ValueError, match="keep_from must be at least drop_below"):
        band_votes(np.zeros(1), 0.1, 0.2)


def test_posterior_by_hand() -> None:
    """Prior ½; a voter that says keep of 9 in 10 good and 1 in 10 bad samples: odds 9, and 81 for two of them."""
    voters = Voters(0.5, np.array([0.9, 0.9]), np.array([0.1, 0.1]))
    votes = np.array([[KEEP, ABSTAIN], [KEEP, KEEP], [KEEP, DROP], [ABSTAIN, ABSTAIN]])
    np.testing.assert_allclose(keep_posterior(votes, voters), [0.9, 81 / 82, 0.5, 0.5])


def planted(n: int, rates: list[float], abstain: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    good = rng.random(n) < 0.4
    votes = np.stack([np.where((rng.random(n) < rate) == good, KEEP, DROP) for rate in rates], axis=1)
    votes[rng.random(votes.shape) < abstain] = ABSTAIN
    return good, votes


def test_rates_of_planted_voters_are_found() -> None:
    rates = [0.9, 0.8, 0.7, 0.55]
    _, votes = planted(40_000, rates, 0.2, 1)
    voters = fit_voters(votes)
    np.testing.assert_allclose(voters.keep_if_good, rates, atol=0.03)
    np.testing.assert_allclose(1 - voters.keep_if_bad, rates, atol=0.03)
    assert voters.prior == pytest.approx(0.4, abs=0.03)


def test_weighing_voters_beats_counting_them() -> None:
    """One good voter among coins: the majority is often wrong where the good one is right."""
    good, votes = planted(20_000, [0.95, 0.9, 0.52, 0.52, 0.52, 0.52], 0.1, 2)
    chosen = keep_posterior(votes, fit_voters(votes)) > 0.5
    majority = votes.sum(axis=1) > 0
    assert (chosen == good).mean() > 0.9 > (majority == good).mean()


def test_somebody_must_vote() -> None:
    with pytest.raises(ValueError, match="at least one that is no abstention"):
        fit_voters(np.zeros((4, 2), dtype=np.int8))
