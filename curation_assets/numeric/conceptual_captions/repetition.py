"""Repetition: few different words, or content words that come again."""

from collections import Counter

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits

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
