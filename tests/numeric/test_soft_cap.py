"""Soft-cap sampling: budgets, softmax without replacement, falling returns, and samples judged alone."""

import numpy as np
import pytest

from curation_assets.numeric.soft_cap import fit_soft_cap, gumbel_of, multiplicities

KEYS = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64)


def test_noise_is_gumbel_and_its_own_for_each_draw() -> None:
    noise = gumbel_of(KEYS, 0)
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.03)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.06)
    assert abs(np.corrcoef(noise, gumbel_of(KEYS, 1))[0, 1]) < 0.03
    np.testing.assert_array_equal(gumbel_of(KEYS[5:6], 3), gumbel_of(KEYS, 3)[5:6])


def test_the_first_draw_follows_the_softmax() -> None:
    """Two samples with logits 0 and log 3: the second is drawn first three times in four."""
    wins = [
        int(multiplicities(logits, pair, fit_soft_cap(logits, pair, 1, 1, 0.0), 0.0)[1])
        for pair in KEYS.reshape(-1, 2)[:4000]
        for logits in [np.array([0.0, np.log(3)])]
    ]
    assert np.mean(wins) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(("budget", "draws"), [(500, 10), (2345, 100), (1, 1), (3000, 3)])
def test_the_budget_is_met_exactly(budget: int, draws: int) -> None:
    logits = np.random.default_rng(1).normal(size=1000)
    thresholds = fit_soft_cap(logits, KEYS[:1000], budget, draws, 0.15)
    assert multiplicities(logits, KEYS[:1000], thresholds, 0.15).sum() == budget


def test_a_penalty_spreads_the_draws() -> None:
    logits = np.linspace(0, 3, 2000)
    counts = {
        penalty: multiplicities(logits, KEYS[:2000], fit_soft_cap(logits, KEYS[:2000], 8000, 80, penalty), penalty)
        for penalty in (0.0, 0.15, 3.0)
    }
    assert counts[0.0].max() > counts[0.15].max() > counts[3.0].max()
    assert counts[0.15][-200:].mean() > counts[0.15][:200].mean()


def test_a_sample_alone_is_drawn_as_often_as_among_others() -> None:
    logits = np.random.default_rng(2).normal(size=500)
    thresholds = fit_soft_cap(logits, KEYS[:500], 700, 50, 0.15)
    whole = multiplicities(logits, KEYS[:500], thresholds, 0.15)
    alone = [multiplicities(logits[i : i + 1], KEYS[i : i + 1], thresholds, 0.15)[0] for i in range(500)]
    assert alone == whole.tolist()


def test_a_draw_cannot_take_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="lower the budget or draw more often"):
        fit_soft_cap(np.zeros(10), KEYS[:10], 30, 2, 0.15)
