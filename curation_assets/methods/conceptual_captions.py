"""Conceptual Captions, the text filter: would the pipeline of Sharma et al. have kept this caption?"""

from typing import Any

import numpy as np

from curation_assets.core.roles import Lexicon, Parser, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.conceptual_captions import NO_WORD_POS, Candidate, Limits
from curation_assets.numeric.conceptual_captions.boilerplate import check_boilerplate, crop_boilerplate
from curation_assets.numeric.conceptual_captions.rules import first_drop
from curation_assets.numeric.dependency import Token


def conceptual_captions(
    caption: Texts, parser: Parser, lexicon: Lexicon, limits: dict[str, Any] | None = None
) -> Values:
    """1 where every rule lets the caption pass, else 0. Sharma et al. 2018 §3; formulas.md §7, stage 2.

    Boiler-plate is cropped first, then the rules of `numeric/conceptual_captions/` run in the order of its
    `stages.CHECKS`. `limits`: settings of `Limits` that differ from the defaults (null switches a rule off).
    Details: rule (the one that dropped it, null where none did), rule_value, rule_about (the words at fault), text
    (after the crop). Raises ValueError for unknown or impossible limits.
    """
    try:
        settings = Limits(**(limits or {}))
    except TypeError as error:
        known = ", ".join(Limits.__dataclass_fields__)
        raise ValueError(f"conceptual_captions: limits must be of {known}; {error}") from error
    texts = [crop_boilerplate(text) for text in caption]
    parsed = parser.parse_texts(texts)
    polarities = lexicon.polarities(texts)
    profanities = lexicon.profanities(texts)
    drops = []
    for i, text in enumerate(texts):
        words = [token for token in parsed[i] if token.pos not in NO_WORD_POS]
        zipf = lexicon.zipf_frequencies([word.text for word in words]).tolist()
        candidate = Candidate(text, words, zipf, float(polarities[i]), profanities[i])
        drops.append(check_boilerplate(caption[i], text) or first_drop(candidate, settings))
    return Values.of(
        np.array([float(drop is None) for drop in drops]),
        rule=[None if drop is None else drop.rule for drop in drops],
        rule_value=[None if drop is None else float(drop.value) for drop in drops],
        rule_about=[None if drop is None else drop.about for drop in drops],
        text=texts,
    )


class _ExampleParser:
    """Parts of speech by dictionary."""

    def parse_texts(self, texts: Texts) -> list[list[Token]]:
        pos = {"a": "DET", "the": "DET", "over": "ADP", "of": "ADP", "flies": "VERB", "red": "ADJ", ".": "PUNCT"}
        return [[Token(word, pos.get(word.lower(), "NOUN"), "NN", "dep", 0) for word in text.split()] for text in texts]


class _ExampleLexicon:
    """Every word is common but 'zyx'; one word is loved, one is forbidden."""

    def zipf_frequencies(self, words: Texts) -> np.ndarray:
        return np.array([0.0 if word == "zyx" else 5.0 for word in words])

    def polarities(self, texts: Texts) -> np.ndarray:
        return np.array([0.9 if "wonderful" in text else 0.0 for text in texts])

    def profanities(self, texts: Texts) -> list[list[str]]:
        return [[word for word in text.split() if word == "darn"] for text in texts]


METHOD = Method(
    function=conceptual_captions,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="Conceptual Captions (Sharma et al. 2018) §3, text-based filtering; thresholds of formulas.md §7",
    blank_caption="empty_caption",
    summary="1 where the caption passes the text rules of Conceptual Captions, else 0.",
    made_for=("boilerplate", "caps", "repetition", "foreign"),
    example=Example(
        columns={
            "caption": [
                "A red kite flies over the beach . Stock Photo",
                "kite beach sea",
                "A red kite flies over the zyx",
                "The wonderful kite of the beach",
                "Click to enlarge picture",
                "The darn kite of the beach",
            ]
        },
        # cropped, then passes; no determiner; rare word; polarity .9; nothing but boiler-plate; profanity
        value=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        roles={"parser": _ExampleParser(), "lexicon": _ExampleLexicon()},
    ),
)
