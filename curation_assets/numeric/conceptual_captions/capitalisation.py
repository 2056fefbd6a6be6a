"""Capitalisation: the first word is capitalised, and not (nearly) all words are."""

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits


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
