"""Parts of speech: a determiner, a noun and a preposition must be there, and it must not be nouns alone."""

from curation_assets.numeric.conceptual_captions import NOUN_POS, Candidate, Drop, Limits

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
