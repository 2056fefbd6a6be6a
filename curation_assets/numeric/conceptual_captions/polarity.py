"""Polarity: no extreme sentiment."""

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits


def check_polarity(candidate: Candidate, limits: Limits) -> Drop | None:
    """`extreme_polarity` where |polarity| is above `max_polarity`; the value keeps its sign."""
    is_extreme = limits.max_polarity is not None and abs(candidate.polarity) > limits.max_polarity
    return Drop("extreme_polarity", candidate.polarity) if is_extreme else None
