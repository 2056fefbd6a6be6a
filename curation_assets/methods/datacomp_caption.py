"""DataComp's filters on captions alone: English, enough words, enough characters."""

from typing import Literal

import numpy as np

from curation_assets.core.roles import LanguageIdentifier, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.datacomp import (
    ENGLISH,
    Broken,
    broken_caption_rule,
    broken_image_based_caption_rule,
)

RULES = {"basic": broken_caption_rule, "image_based": broken_image_based_caption_rule}


def datacomp_caption(
    caption: Texts,
    language_identifier: LanguageIdentifier,
    filtering: Literal["basic", "image_based"] = "basic",
) -> Values:
    """1 where the likeliest language is English and the caption is long enough, else 0. DataComp §3.2, formulas.md
    §3.2.

    filtering 'basic': more than 2 words, split at white space; 'image_based': more than 1, split as fastText does; both
    more than 5 characters. Details: rule (the first that is broken, null where none is), rule_value, language,
    language_probability. Raises ValueError for an unknown filtering.
    """
    if filtering not in RULES:
        raise ValueError(f"filtering must be one of {', '.join(RULES)}, got {filtering!r}")
    languages, probabilities = language_identifier.identify_languages(caption)
    broken = [
        Broken("not_english", float(probability)) if language != ENGLISH else RULES[filtering](text)
        for text, language, probability in zip(caption, languages, probabilities, strict=True)
    ]
    return Values.of(
        np.array([float(violation is None) for violation in broken]),
        rule=[None if violation is None else violation.rule for violation in broken],
        rule_value=[None if violation is None else float(violation.value) for violation in broken],
        language=languages,
        language_probability=[float(probability) for probability in probabilities],
    )


class ExampleIdentifier:
    """German where 'der' or 'rote' stands, else English."""

    def identify_languages(self, texts: Texts) -> tuple[list[str], np.ndarray]:
        languages = ["de" if {"der", "rote"} & set(text.split()) else "en" for text in texts]
        return languages, np.full(len(texts), 0.9)


METHOD = Method(
    function=datacomp_caption,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="DataComp (Gadre et al. 2023) §3.2, basic filtering, captions; formulas.md §3.2",
    summary="1 where the caption is English, longer than two words and longer than five characters, else 0.",
    made_for=("short", "foreign"),
    known_limits={"short": "planted short captions have talk after them: more than two words"},
    example=Example(
        columns={"caption": ["a red kite", "red kite", "i a b", "hier ist der Hund"]},
        value=[1.0, 0.0, 0.0, 0.0],  # 3 words, 10 characters; 2 words; 5 characters; German
        roles={"language_identifier": ExampleIdentifier()},
    ),
)
