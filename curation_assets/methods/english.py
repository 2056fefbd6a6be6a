"""Whether a caption is English: the language rule of DataComp and LAION by itself, for policies that combine it."""

from collections.abc import Sequence

import numpy as np

from curation_assets.core.roles import LanguageIdentifier
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier
from curation_assets.numeric.datacomp import ENGLISH


def english(caption: Sequence[str], language_identifier: LanguageIdentifier) -> Values:
    """1 where the likeliest language is English, else 0. Details: language, language_probability. formulas.md §3.2."""
    languages, probabilities = language_identifier.identify_languages(caption)
    return Values.of(
        np.array([float(language == ENGLISH) for language in languages]),
        language=languages,
        language_probability=[float(probability) for probability in probabilities],
    )


METHOD = Method(
    name="english",
    function=english,
    columns=("caption",),
    roles=("language_identifier",),
    unit="1 English, 0 not",
    bounds=(0.0, 1.0),
    direction="higher",
    source="DataComp (Gadre et al. 2023) §3.2 and LAION-2B (Schuhmann et al. 2022), language; docs/formulas.md §3.2",
    version="1",
    summary="1 where the caption's likeliest language is English, else 0.",
    made_for=("foreign",),
    default=False,
    example=Example(
        columns={"caption": ["a red kite", "der rote Drachen"]},
        value=[1.0, 0.0],
        roles={"language_identifier": ExampleIdentifier()},
    ),
)
