"""Standardisation inside caption-length groups (formulas.md §1.6, §13.3)."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.special import expit

from curation_assets.numeric.standardise import (
    LengthGroup,
    LengthStatistics,
    caption_length,
    fit_length_statistics,
    length_dependence,
    length_warning,
    standardise,
)


def test_three_values_in_one_group() -> None:
    """formulas.md §13.3, population sd."""
    values, lengths = np.array([0.2, 0.5, 0.8]), np.array([4, 4, 4])
    statistics = fit_length_statistics(values, lengths, min_group=3)
    np.testing.assert_allclose(standardise(values, lengths, statistics), [0.326349, 0.622459, 0.848739], atol=1e-6)
    # the other reading, sample sd (ddof 1), would give .377541 and .817574: it is not the one taken
    widened = LengthStatistics((replace(statistics.groups[0], sd=statistics.groups[0].sd * np.sqrt(3 / 2)),))
    np.testing.assert_allclose(standardise(values, lengths, widened), [0.377541, 0.622459, 0.817574], atol=1e-6)


def test_normal_logits_reach_the_target_distribution() -> None:
    """LN(0.5, 1): the quantiles and moments of formulas.md §1.6, from exact normal quantiles."""
    from scipy.stats import norm

    logits = norm.ppf((np.arange(20_000) + 0.5) / 20_000) * 0.7 - 1.3
    lengths = np.full(len(logits), 9)
    scores = standardise(expit(logits), lengths, fit_length_statistics(expit(logits), lengths))
    found = np.quantile(scores, [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    np.testing.assert_allclose(found, [0.1387, 0.2414, 0.4565, 0.622459, 0.7640, 0.8952, 0.9441], atol=2e-4)
    assert scores.mean() == pytest.approx(0.602027, abs=1e-4)
    assert scores.std() == pytest.approx(0.201504, abs=1e-4)


def test_caption_length_counts_words() -> None:
    assert caption_length(["a red  kite", "", " one "]).tolist() == [3, 0, 1]


def test_groups_hold_enough_and_leave_no_gap() -> None:
    rng = np.random.default_rng(0)
    lengths = np.repeat([2, 3, 5, 6, 30], [60, 20, 40, 70, 5])
    statistics = fit_length_statistics(rng.uniform(0.1, 0.9, len(lengths)), lengths)
    ranges = [(g.length_low, g.length_high, g.n) for g in statistics.groups]
    # 3 and 5 are merged (60); 30 is too rare for a group and joins 6; 0–2 starts at 0 words
    assert ranges == [(0, 2, 60), (3, 5, 60), (6, None, 75)]
    assert not any(group.is_pooled for group in statistics.groups)


def test_each_group_is_centred_by_its_own_statistics() -> None:
    """Twin: by hand with numpy, per length."""
    rng = np.random.default_rng(1)
    lengths = np.repeat([4, 8], 80)
    values = expit(rng.normal(size=160) + lengths / 4)
    scores = standardise(values, lengths, fit_length_statistics(values, lengths))
    for length in (4, 8):
        x = np.log(values / (1 - values))[lengths == length]
        np.testing.assert_allclose(scores[lengths == length], expit(0.5 + (x - x.mean()) / x.std()))


def test_small_and_narrow_groups_borrow_the_pooled_statistics() -> None:
    few = fit_length_statistics(np.array([0.2, 0.5, 0.8]), np.array([3, 3, 9]))
    assert [(g.length_low, g.length_high, g.is_pooled) for g in few.groups] == [(0, None, True)]
    values = np.concatenate([np.full(50, 0.3), np.linspace(0.2, 0.9, 50)])
    narrow = fit_length_statistics(values, np.repeat([3, 7], 50))
    assert [g.is_pooled for g in narrow.groups] == [True, False]
    assert narrow.groups[0].mean == pytest.approx(np.log(values / (1 - values)).mean())


def test_global_grouping_is_one_group() -> None:
    lengths = np.repeat([2, 9], 60)
    values = np.linspace(0.1, 0.9, 120)
    statistics = fit_length_statistics(values, lengths, grouping="global")
    assert len(statistics.groups) == 1
    assert statistics.groups[0].n == 120


def test_gaps_stay_gaps_and_do_not_move_the_statistics() -> None:
    values, lengths = np.array([0.2, np.nan, 0.5, 0.8]), np.array([4, 4, 4, 4])
    statistics = fit_length_statistics(values, lengths, min_group=3)
    assert statistics.groups[0].n == 3
    scores = standardise(values, lengths, statistics)
    assert np.isnan(scores).tolist() == [False, True, False, False]


def test_rows_survive_a_table() -> None:
    rng = np.random.default_rng(2)
    statistics = fit_length_statistics(rng.uniform(0.1, 0.9, 200), np.repeat([3, 4, 8, 9], 50))
    rows = pl.DataFrame(statistics.to_rows()).sample(fraction=1, shuffle=True, seed=3).to_dicts()
    assert LengthStatistics.from_rows(rows) == statistics


def test_gaps_between_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="without a gap"):
        LengthStatistics((LengthGroup(0, 3, 0.0, 1.0, 9, False), LengthGroup(5, None, 0.0, 1.0, 9, False)))


@pytest.mark.parametrize("bad", [0.0, 1.0, 1.2])
def test_values_without_a_logit_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="inside"):
        fit_length_statistics(np.array([0.5, bad]), np.array([3, 3]))


def test_no_spread_is_refused() -> None:
    with pytest.raises(ValueError, match="all 3 values are equal"):
        fit_length_statistics(np.full(3, 0.4), np.array([1, 2, 3]))


def test_length_dependence_before_and_after() -> None:
    rng = np.random.default_rng(4)
    lengths = np.repeat(np.arange(3, 13), 60)
    values = expit(0.5 * (lengths - 8) + rng.normal(size=len(lengths)))
    before = length_dependence(values, lengths)
    after = length_dependence(standardise(values, lengths, fit_length_statistics(values, lengths)), lengths)
    assert before.spearman > 0.7
    assert abs(after.spearman) < 0.1
    assert length_dependence(2.0 * lengths, lengths).slope_per_word == pytest.approx(2.0)
    warning = length_warning(before, "length")
    assert warning is not None
    assert "follows caption length" in warning
    assert length_warning(before, "global") is None
    assert length_warning(after, "length") is None
