"""Whether a caption is English: by its script, and by the language identifier as far as its words let it judge."""

import numpy as np

from curation_assets.core.roles import LanguageIdentifier, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier
from curation_assets.numeric.datacomp import ENGLISH
from curation_assets.numeric.scripts import is_of_another_script

#: Words → what the probability of another language must reach, as written and in lower case; the last for more words.
#: Calibrated by benchmarks/english.py.
THRESHOLDS = (0.55, 0.35, 0.45, 0.55, 0.45)
MAX_WORDS = 40  # of longer captions no word is left out: one of so many decides nothing
UNDETERMINED = "und"  # ISO 639-2


def english(caption: Texts, language_identifier: LanguageIdentifier) -> Values:
    """1 where the caption is English or has no letter, else 0. Detail: language, by `likely_languages`."""
    languages = likely_languages(caption, language_identifier)
    return Values.of(np.array([float(language in (ENGLISH, None)) for language in languages]), language=languages)


def likely_languages(captions: Texts, identifier: LanguageIdentifier) -> list[str | None]:
    """(N,) captions → (N,) ISO 639 codes: English unless another language is likely, None for a text without a letter.

    Another is likely where most letters are of another script than Latin (UNDETERMINED if the identifier names none);
    else where the identifier's likeliest is another, as written and in lower case, each with a probability of at least
    THRESHOLDS, and still another whichever plain word (ASCII) is left out: a word that two languages share ("snowy",
    "hat") tells nothing of the others.
    """
    return [
        _likely_language(text, language, probability, identifier)
        for text, (language, probability) in zip(captions, other_languages(captions, identifier), strict=True)
    ]


def _likely_language(text: str, language: str, probability: float, identifier: LanguageIdentifier) -> str | None:
    if not _has_letter(text):
        return None
    if is_of_another_script(text):
        return language or UNDETERMINED
    if not language or probability < threshold_of(text):
        return ENGLISH
    words = text.split()
    plain = range(len(words)) if len(words) <= MAX_WORDS else ()
    rests = [" ".join(words[:place] + words[place + 1 :]) for place in plain if words[place].isascii()]
    others = other_languages(list(filter(_has_letter, rests)), identifier)
    return language if all(other for other, _ in others) else ENGLISH


def threshold_of(text: str) -> float:
    """The threshold of a text of one word or more, by the number of its words."""
    return THRESHOLDS[min(len(text.split()), len(THRESHOLDS)) - 1]


def other_languages(texts: Texts, identifier: LanguageIdentifier) -> list[tuple[str, float]]:
    """Likeliest language as written, and the lower one of its probabilities as written and in lower case; '' and 0
    where either is English."""
    as_written = zip(*identifier.identify_languages(texts), strict=True)
    in_lower_case = zip(*identifier.identify_languages([text.lower() for text in texts]), strict=True)
    return [
        ("", 0.0) if ENGLISH in (language, lower_language) else (language, float(min(probability, lower_probability)))
        for (language, probability), (lower_language, lower_probability) in zip(as_written, in_lower_case, strict=True)
    ]


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


METHOD = Method(
    function=english,
    unit="1 English, 0 not",
    bounds=(0.0, 1.0),
    source="DataComp (Gadre et al. 2023) §3.2 and LAION-2B (Schuhmann et al. 2022), language; formulas.md §3.2",
    version="3",
    summary="1 where neither the script nor a likely language speaks against English, else 0.",
    made_for=("foreign",),
    example=Example(
        columns={"caption": ["a red kite", "der rote Drachen", "Red Der", "красный змей", "10.5"]},
        value=[1.0, 0.0, 1.0, 0.0, 1.0],
        roles={"language_identifier": ExampleIdentifier()},
    ),
)
