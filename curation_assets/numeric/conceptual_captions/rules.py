"""The rules on texts in their order, each of which drops a candidate, and the first one that does.

Length; parts of speech, not nouns alone; repetition; capitalisation; vocabulary; sentiment; profanity.
"""

from collections import Counter
from collections.abc import Callable

from curation_assets.numeric.conceptual_captions import NOUN_POS, Candidate, Drop, Limits


def check_length(candidate: Candidate, limits: Limits) -> Drop | None:
    """`too_short` or `too_long`; the value is the number of words, punctuation not counted."""
    count = len(candidate.words)
    if limits.min_words is not None and count < limits.min_words:
        return Drop("too_short", count)
    return Drop("too_long", count) if limits.max_words is not None and count > limits.max_words else None


CLASSES = {"determiner": ("DET",), "noun": NOUN_POS, "preposition": ("ADP",), "verb": ("VERB",)}


def check_classes(candidate: Candidate, limits: Limits) -> Drop | None:
    """`no_<class>` for the first required class that is missing; the value is how many classes are missing.

    Raises ValueError for a class that CLASSES lacks.
    """
    unknown = [name for name in limits.required_classes if name not in CLASSES]
    if unknown:
        raise ValueError(f"required_classes must be of {', '.join(CLASSES)}, got {unknown}")
    present = {word.pos for word in candidate.words}
    missing = [name for name in limits.required_classes if not present & set(CLASSES[name])]
    return Drop(f"no_{missing[0]}", len(missing), ", ".join(missing)) if missing else None


def noun_ratio(candidate: Candidate) -> float:
    """Share of words that are common or proper nouns, in [0, 1]; 0 without words."""
    return sum(word.pos in NOUN_POS for word in candidate.words) / max(1, len(candidate.words))


def check_noun_ratio(candidate: Candidate, limits: Limits) -> Drop | None:
    """`high_noun_ratio` above `max_noun_ratio`."""
    ratio = noun_ratio(candidate)
    return (
        Drop("high_noun_ratio", ratio) if limits.max_noun_ratio is not None and ratio > limits.max_noun_ratio else None
    )


CONTENT_POS = ("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM", "INTJ", "X")


def unique_ratio(candidate: Candidate) -> float:
    """Distinct words over words, in (0, 1], case ignored; 1 without words."""
    words = [word.text.lower() for word in candidate.words]
    return len(set(words)) / len(words) if words else 1.0


def repetition(candidate: Candidate) -> float:
    """Share of words that are content words that occurred before, case ignored, in [0, 1).

    "red kite, red kite, red kite" → 4/6. Function words may come again: "a dog on a beach by a tree" → 0.
    """
    counts = Counter(word.text.lower() for word in candidate.words if word.pos in CONTENT_POS)
    return sum(count - 1 for count in counts.values()) / max(1, len(candidate.words))


def check_repetition(candidate: Candidate, limits: Limits) -> Drop | None:
    """`low_unique_ratio` below `min_unique_ratio`, `repetition` above `max_repetition`."""
    ratio = unique_ratio(candidate)
    if limits.min_unique_ratio is not None and ratio < limits.min_unique_ratio:
        return Drop("low_unique_ratio", ratio)
    share = repetition(candidate)
    if limits.max_repetition is None or share <= limits.max_repetition:
        return None
    most = Counter(word.text.lower() for word in candidate.words if word.pos in CONTENT_POS).most_common(1)
    return Drop("repetition", share, most[0][0])


def is_capitalised(word: str) -> bool:
    """Whether the first letter or digit is no lower-case letter; a word that has neither counts as not capitalised."""
    first = next((character for character in word if character.isalnum()), None)
    return first is not None and not first.islower()


def capitalised_ratio(candidate: Candidate) -> float:
    """Share of words that begin with a capital letter, in [0, 1]; 0 without words. Digits are no capitals."""
    count = sum(next((c for c in word.text if c.isalnum()), "").isupper() for word in candidate.words)
    return count / max(1, len(candidate.words))


def check_capitalisation(candidate: Candidate, limits: Limits) -> Drop | None:
    """`first_word_lower_case` (value: the capitalised ratio), or `capitalised` above `max_capitalised_ratio`."""
    ratio = capitalised_ratio(candidate)
    first = candidate.words[0].text if candidate.words else ""
    if limits.first_word_capitalised and first and not is_capitalised(first):
        return Drop("first_word_lower_case", ratio, first)
    high = limits.max_capitalised_ratio is not None and ratio > limits.max_capitalised_ratio
    return Drop("capitalised", ratio) if high else None


def check_vocabulary(candidate: Candidate, limits: Limits) -> Drop | None:
    """`rare_word` where the rarest word is below `min_zipf`; the value is its Zipf frequency. Numbers are no words."""
    named = [
        (zipf, word.text)
        for word, zipf in zip(candidate.words, candidate.zipf, strict=True)
        if any(character.isalpha() for character in word.text)
    ]
    if limits.min_zipf is None or not named:
        return None
    zipf, text = min(named)
    return Drop("rare_word", zipf, text) if zipf < limits.min_zipf else None


def check_polarity(candidate: Candidate, limits: Limits) -> Drop | None:
    """`extreme_polarity` where |polarity| is above `max_polarity`; the value keeps its sign."""
    is_extreme = limits.max_polarity is not None and abs(candidate.polarity) > limits.max_polarity
    return Drop("extreme_polarity", candidate.polarity) if is_extreme else None


def check_profanity(candidate: Candidate, limits: Limits) -> Drop | None:
    """`profanity` where the list matches; the value is the number of matches."""
    if not limits.profanity or not candidate.profanities:
        return None
    return Drop("profanity", len(candidate.profanities), candidate.profanities[0])


#: In this order, after the boiler-plate crop. The order decides the reason, not whether a candidate passes.
CHECKS: tuple[Callable[[Candidate, Limits], Drop | None], ...] = (
    check_length,
    check_classes,
    check_noun_ratio,
    check_repetition,
    check_capitalisation,
    check_vocabulary,
    check_polarity,
    check_profanity,
)


def first_drop(candidate: Candidate, limits: Limits) -> Drop | None:
    """The first rule that drops the candidate, None where it passes them all."""
    return next((drop for check in CHECKS if (drop := check(candidate, limits)) is not None), None)
