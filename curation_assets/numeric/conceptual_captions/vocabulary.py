"""Vocabulary: every word is one that is seen now and then."""

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits


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
