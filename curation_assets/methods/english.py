"""Whether a caption is English: by its script, and by the language identifier as far as so few words let it judge."""

from collections.abc import Sequence

import numpy as np

from curation_assets.core.roles import LanguageIdentifier
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier
from curation_assets.numeric.datacomp import ENGLISH
from curation_assets.numeric.scripts import is_of_another_script

#: Words → what the probability of another language must reach, as written and in lower case; the last for more words.
#: Calibrated by benchmarks/english.py.
THRESHOLDS = (0.55, 0.35, 0.45, 0.55, 0.45)


def english(caption: Sequence[str], language_identifier: LanguageIdentifier) -> Values:
    """1 where the caption is English, else 0. Not English: most of its letters are of another script than Latin, or
    the likeliest language is another both as written and in lower case, each with a probability of at least
    THRESHOLDS. A caption without letters is in no other language: 1. Details: language, language_probability (of the
    caption as written).
    """
    languages, probabilities = language_identifier.identify_languages(caption)
    lower_languages, lower_probabilities = language_identifier.identify_languages([text.lower() for text in caption])
    value = [
        float(
            not is_of_another_script(text)
            and (ENGLISH in (language, lower) or min(probability, lower_probability) < threshold_of(text))
        )
        for text, language, lower, probability, lower_probability in zip(
            caption, languages, lower_languages, probabilities, lower_probabilities, strict=True
        )
    ]
    return Values.of(
        np.array(value),
        language=languages,
        language_probability=[float(probability) for probability in probabilities],
    )


def threshold_of(caption: str) -> float:
    """Of THRESHOLDS, by the number of words; 1.01, which no probability reaches, where there is no letter."""
    if not any(map(str.isalpha, caption)):
        return 1.01
    return THRESHOLDS[min(len(caption.split()), len(THRESHOLDS)) - 1]


METHOD = Method(
    name="english",
    function=english,
    columns=("caption",),
    roles=("language_identifier",),
    unit="1 English, 0 not",
    bounds=(0.0, 1.0),
    direction="higher",
    source="DataComp (Gadre et al. 2023) §3.2 and LAION-2B (Schuhmann et al. 2022), language; formulas.md §3.2",
    version="2",
    summary="1 where neither the script nor a likely language speaks against English, else 0.",
    made_for=("foreign",),
    default=False,
    example=Example(
        columns={"caption": ["a red kite", "der rote Drachen", "Red Der", "красный змей", "10.5"]},
        value=[1.0, 0.0, 1.0, 0.0, 1.0],
        roles={"language_identifier": ExampleIdentifier()},
    ),
)
