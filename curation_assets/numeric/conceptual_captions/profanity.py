"""Profanity: no word or phrase of the list."""

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits


def check_profanity(candidate: Candidate, limits: Limits) -> Drop | None:
    """`profanity` where the list matches; the value is the number of matches."""
    if not limits.profanity or not candidate.profanities:
        return None
    return Drop("profanity", len(candidate.profanities), candidate.profanities[0])
