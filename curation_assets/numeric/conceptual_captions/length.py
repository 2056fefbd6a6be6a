"""Length: a caption has at least 3 and at most 256 words (CC12M's description)."""

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits


def check_length(candidate: Candidate, limits: Limits) -> Drop | None:
    """`too_short` or `too_long`; the value is the number of words, punctuation not counted."""
    count = len(candidate.words)
    if limits.min_words is not None and count < limits.min_words:
        return Drop("too_short", count)
    return Drop("too_long", count) if limits.max_words is not None and count > limits.max_words else None
