"""Concreteness by dictionary: the mean rating of a caption's words in a list that people rated."""

from collections.abc import Mapping

import numpy as np

from curation_assets.core.roles import Texts
from curation_assets.methods import Example, FileSetting, Method, Values
from curation_assets.numeric.caption_benchmark import word_ratings, words_of
from curation_assets.numeric.lemmas import lemma_in


def concreteness_lexicon(caption: Texts, lexicon: Mapping[str, float] | None = None) -> Values:
    """Mean rating of the words that the lexicon holds. Brysbaert et al. 2014; each word counts as often as it occurs.

    Words are whitespace tokens without outer punctuation, in lower case; two words that the list holds as one entry
    ("hot dog") count once. A word that is not listed is looked up without its inflection (`numeric/lemmas.py`).
    `lexicon`: word → rating; the setting `path` names the file. Detail: rated_share, the share of words with a rating.
    Reasons: `no_lexicon` (none given), `empty_caption`, `no_rated_word`.
    """
    value = np.full(len(caption), np.nan)
    reason: list[str | None] = [None] * len(caption)
    shares: list[float | None] = [None] * len(caption)
    for i, text in enumerate(caption):
        words = [word.lower() for word in words_of(text)]
        if lexicon is None:
            reason[i] = "no_lexicon"
        elif not words:
            reason[i] = "empty_caption"
        else:
            ratings, covered = _ratings_of(words, lexicon)
            shares[i] = covered / len(words)
            if ratings:
                value[i] = np.mean(ratings)
            else:
                reason[i] = "no_rated_word"
    return Values(value, reason, {"rated_share": shares})


def _ratings_of(words: list[str], lexicon: Mapping[str, float]) -> tuple[list[float], int]:
    """Ratings found from left to right, two-word entries first, and how many words they cover."""
    ratings, covered, position = [], 0, 0
    while position < len(words):
        pair = " ".join(words[position : position + 2])
        entry = pair if position + 1 < len(words) and pair in lexicon else lemma_in(words[position], lexicon)
        width = 2 if entry == pair and position + 1 < len(words) else 1
        if entry is not None:
            ratings.append(lexicon[entry])
            covered += width
        position += width
    return ratings, covered


METHOD = Method(
    function=concreteness_lexicon,
    unit="mean word rating (1 to 5 in the list of Brysbaert et al. 2014)",
    bounds=(float("-inf"), float("inf")),  # the scale is the lexicon's
    source="Brysbaert, Warriner & Kuperman 2014; word list given by the user",
    summary="Mean concreteness rating of the caption's words in a rated word list.",
    made_for=("abstract",),
    file_settings={"path": FileSetting("lexicon", word_ratings)},
    example=Example(
        columns={"caption": ["Two dogs!", "a hot dog", "truth and dogs", "truth"]},
        # dogs → dog 5; "hot dog" is one entry, 4; (2 + 5) / 2; 2
        value=[5.0, 4.0, 3.5, 2.0],
        settings={"lexicon": {"dog": 5.0, "hot dog": 4.0, "truth": 2.0}},
    ),
)
