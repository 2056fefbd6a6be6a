"""Descriptive: does an alt-text of so few informative words say what its image shows?"""

import numpy as np

from curation_assets.core.roles import Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.informative_words import informative_words

#: Log odds without an informative word, and what each adds: fitted on hand labels of alt-texts by `lab/descriptive.py`.
INTERCEPT, PER_WORD = -2.115, 0.704


def descriptive(caption: Texts) -> Values:
    """σ(INTERCEPT + PER_WORD · number of informative words, at most ten): how often people found alt-texts of so many
    descriptive of their image. Details: informative_words.
    """
    counts = [informative_words(text) for text in caption]
    return Values.of(probability_of(np.array(counts), INTERCEPT, PER_WORD), informative_words=counts)


def probability_of(counts: np.ndarray, intercept: float, per_word: float) -> np.ndarray:
    """(N,) numbers of informative words → (N,) in (0, 1)."""
    return 1 / (1 + np.exp(-(intercept + per_word * counts)))


METHOD = Method(
    function=descriptive,
    unit="probability that the alt-text says what its image shows",
    bounds=(0.0, 1.0),
    source="this project: hand labels of alt-texts of web sites; docs/decisions/0098",
    blank_caption="empty_caption",
    summary="How likely an alt-text of so few informative words is to say what its image shows.",
    made_for=("file_name",),  # profile photos names it
    example=Example(
        columns={"caption": ["IMG_2031.jpg", "company logo", "a red dog", "Two red dogs run on the wide sandy beach"]},
        value=[0.1076474264, 0.1960763780, 0.4992500006, 0.9855285450],
    ),
)
