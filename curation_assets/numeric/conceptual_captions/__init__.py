"""The text stage of the Conceptual Captions pipeline (Sharma et al. 2018 §3).

The paper publishes no thresholds. The defaults are formulas.md §7's, marked unpublished there; 3–256 words and a
repetition of at most .2 come from CC12M's description of how its rules were relaxed.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from curation_assets.numeric.dependency import Token

NO_WORD_POS = ("PUNCT", "SYM", "SPACE")
NOUN_POS = ("NOUN", "PROPN")


class Drop(NamedTuple):
    """The rule that drops a candidate, the value that breaks it, and the words it is about."""

    rule: str
    value: float
    about: str = ""


@dataclass(frozen=True)
class Candidate:
    """One caption after the boiler-plate crop, with the models' annotations. Shapes: W words."""

    text: str
    words: list[Token]  # (W,) tokens that are no punctuation
    zipf: list[float]  # (W,) log10 of occurrences per 10⁹ words, 0 for an unknown word
    polarity: float  # in [-1, 1]
    profanities: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Limits:
    """Thresholds; None switches a rule off. Raises ValueError for a share outside [0, 1]."""

    min_words: int | None = 3
    max_words: int | None = 256
    required_classes: tuple[str, ...] = ("determiner", "noun", "preposition")
    max_noun_ratio: float | None = 0.8
    min_unique_ratio: float | None = 0.5
    max_repetition: float | None = 0.2
    first_word_capitalised: bool = True
    max_capitalised_ratio: float | None = 0.8
    min_zipf: float | None = 1.0  # 10 per 10⁹ words; the paper's 5 in about 10⁹ words of Wikipedia would be 0.7
    max_polarity: float | None = 0.8
    profanity: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "required_classes", tuple(self.required_classes))
        for name in ("max_noun_ratio", "min_unique_ratio", "max_repetition", "max_capitalised_ratio", "max_polarity"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must be in [0, 1] or null (off), got {share}")
