"""Entries in captions, limits and keep probabilities against numbers worked out by hand."""

import numpy as np

from curation_assets.numeric.concepts import (
    EntryMatcher,
    frequent_ngrams,
    keep_probabilities,
    limit_of_tail,
    padded,
)


def test_padding_is_as_published() -> None:
    assert padded("A logo,\tred!") == " a logo ,  red !  "
    assert padded("A logo", ignore_case=False) == " A logo "


def test_entries_match_as_whole_words_only() -> None:
    matches = EntryMatcher(["logo", "red kite", "kite", "art"]).match(["a Red kite, an art", "logos; party", "logo."])
    assert list(zip(matches.row.tolist(), matches.item.tolist(), strict=True)) == [(0, 1), (0, 2), (0, 3), (2, 0)]
    assert matches.rows == 3


def test_ngrams_do_not_cross_punctuation_and_count_a_caption_once() -> None:
    grams = frequent_ngrams(["red kite red kite", "kite, red", "12 red"], least=2)
    assert grams == {"red": 3, "kite": 2}
    assert frequent_ngrams(["red kite", "a red kite"], least=2) == {"red": 2, "kite": 2, "red kite": 2}


def test_the_limit_is_where_the_tail_holds_its_share() -> None:
    assert limit_of_tail(np.array([6, 1, 2, 1, 0]), 0.4) == 2  # 1 + 1 + 2 of 10
    assert limit_of_tail(np.array([6, 1, 2, 1]), 0.05) == 1
    assert limit_of_tail(np.zeros(3), 0.06) == 1


def test_keep_probability_by_hand() -> None:
    """t = 10: p of entries with 20, 100 and 5 captions is .5, .1 and 1."""
    counts = np.array([20, 100, 5])
    matches = EntryMatcher(["red", "a", "kite"]).match(["a red", "a", "a kite", "none"])
    chance, rarest = keep_probabilities(matches, counts, 10)
    np.testing.assert_allclose(chance, [1 - 0.5 * 0.9, 0.1, 1.0, 0.0])
    assert rarest.tolist() == [0, 1, 2, -1]
