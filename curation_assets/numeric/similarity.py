"""Similarities of strings, and how to pull them off 0 and 1 before a logit."""

from collections.abc import Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein

#: BERTScore is kept inside these bounds before the logit (formulas.md §1.6).
OPEN_LOW, OPEN_HIGH = 0.005, 0.995


def edit_similarity(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """1 − Levenshtein / longer length, pairwise. (N,), (N,) → (N,) float64 in [0, 1]. ICC §4.2, formulas.md §1.4.

    Per character, case-sensitive, unit costs; two empty strings are equal, so 1. Raises ValueError when the
    lists differ in length.
    """
    pairs = _pairs(candidates, references)
    return np.array([Levenshtein.normalized_similarity(a, b) for a, b in pairs], dtype=np.float64)


def corrected_edit_similarity(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(k + ½) / (n + 1) with n the longer length and k = n − Levenshtein. (N,), (N,) → (N,) in (0, 1).

    The continuity correction of formulas.md §1.6: a perfect copy of a long caption is stronger evidence than one of a
    short caption, and a logit exists for both. Raises ValueError when the lists differ in length.
    """
    longer = np.array([max(len(a), len(b)) for a, b in _pairs(candidates, references)], dtype=np.float64)
    distances = np.array([Levenshtein.distance(a, b) for a, b in _pairs(candidates, references)], dtype=np.float64)
    return (longer - distances + 0.5) / (longer + 1.0)


def open_interval(similarity: np.ndarray) -> np.ndarray:
    """Similarity clipped to [0.005, 0.995], so that a logit exists. (N,) → (N,); NaN stays NaN. formulas.md §1.6."""
    return np.clip(np.asarray(similarity, dtype=np.float64), OPEN_LOW, OPEN_HIGH)


def _pairs(candidates: Sequence[str], references: Sequence[str]) -> list[tuple[str, str]]:
    if len(candidates) != len(references):
        raise ValueError(
            f"candidates and references are compared pairwise and must be equally many; "
            f"got {len(candidates)} and {len(references)}"
        )
    return list(zip(candidates, references, strict=True))
