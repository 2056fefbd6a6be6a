"""What a judge that writes text says of a pair: the number in its answer."""

import re

import numpy as np

_NUMBER = re.compile(r"(?<![\d.-])(\d{1,3}(?:\.\d+)?)(?![\d])")


def score_in(answer: str, low: float = 0.0, high: float = 100.0) -> float:
    """The first number of an answer, NaN where there is none or it lies outside [low, high]. "Score: 85/100" → 85."""
    found = _NUMBER.search(answer)
    value = float(found[1]) if found else np.nan
    return value if low <= value <= high else np.nan
