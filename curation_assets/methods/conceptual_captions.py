"""Conceptual Captions, the text filter: would the pipeline of Sharma et al. have kept this caption?"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from curation_assets.core.roles import Lexicon, Parser
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.conceptual_captions import NO_WORD_POS, Candidate, Limits
from curation_assets.numeric.conceptual_captions.boilerplate import check_boilerplate, crop_boilerplate
from curation_assets.numeric.conceptual_captions.stages import first_drop
from curation_assets.numeric.dependency import Token


def conceptual_captions(
    caption: Sequence[str], parser: Parser, lexicon: Lexicon, limits: dict[str, Any] | None = None
) -> Values:
    """1 where every rule lets the caption pass, else 0. Sharma et al. 2018 §3; docs/formulas.md §7, stage 2.

    Boiler-plate is cropped first, then the rules of `numeric/conceptual_captions/` run in the order of its
    `stages.CHECKS`. `limits`: settings of `Limits` that differ from the defaults (null switches a rule off).
    Details: rule (the one that dropped it, null where none did), rule_value, rule_about (the words at fault), text
    (after the crop). A blank caption has no value (reason `empty_caption`).
    Raises ValueError for unknown or impossible limits.
    """
    try:
        settings = Limits(**(limits or {}))
    except TypeError as error:
        known = ", ".join(Limits.__dataclass_fields__)
        raise ValueError(f"conceptual_captions: limits must be of {known}; {error}") from error
    nonblank = [i for i, text in enumerate(caption) if text.strip()]
    texts = [crop_boilerplate(caption[i]) for i in nonblank]
    parsed = parser.parse_texts(texts) if nonblank else []
    polarities = lexicon.polarities(texts) if nonblank else np.zeros(0)
    profanities = lexicon.profanities(texts) if nonblank else []

    value = np.full(len(caption), np.nan)
    reason: list[str | None] = ["empty_caption"] * len(caption)
    names = ("rule", "rule_value", "rule_about", "text")
    details: dict[str, list[Any]] = {name: [None] * len(caption) for name in names}
    for k, i in enumerate(nonblank):
        words = [token for token in parsed[k] if token.pos not in NO_WORD_POS]
        zipf = lexicon.zipf_frequencies([word.text for word in words]).tolist()
        candidate = Candidate(texts[k], words, zipf, float(polarities[k]), profanities[k])
        drop = check_boilerplate(caption[i], texts[k]) or first_drop(candidate, settings)
        value[i], reason[i], details["text"][i] = float(drop is None), None, texts[k]
        if drop is not None:
            rule_details = (drop.rule, float(drop.value), drop.about)
            for name, what in zip(names, rule_details, strict=False):
                details[name][i] = what
    return Values(value, reason, details)


class _ExampleParser:
    """Parts of speech by dictionary."""

    def parse_texts(self, texts: Sequence[str]) -> list[list[Token]]:
        pos = {"a": "DET", "the": "DET", "over": "ADP", "of": "ADP", "flies": "VERB", "red": "ADJ", ".": "PUNCT"}
        return [[Token(word, pos.get(word.lower(), "NOUN"), "NN", "dep", 0) for word in text.split()] for text in texts]


class _ExampleLexicon:
    """Every word is common but 'zyx'; one word is loved, one is forbidden."""

    def zipf_frequencies(self, words: Sequence[str]) -> np.ndarray:
        return np.array([0.0 if word == "zyx" else 5.0 for word in words])

    def polarities(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([0.9 if "wonderful" in text else 0.0 for text in texts])

    def profanities(self, texts: Sequence[str]) -> list[list[str]]:
        return [[word for word in text.split() if word == "darn"] for text in texts]


METHOD = Method(
    name="conceptual_captions",
    function=conceptual_captions,
    columns=("caption",),
    roles=("parser", "lexicon"),
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    direction="higher",
    source="Conceptual Captions (Sharma et al. 2018) §3, text-based filtering; thresholds of docs/formulas.md §7",
    version="1",
    summary="1 where the caption passes the text rules of Conceptual Captions, else 0.",
    made_for=("boilerplate", "caps", "repetition", "foreign"),
    default=False,
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
