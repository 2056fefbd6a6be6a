"""Which caption of a sample to train on: its own, or the best generated one (Nguyen et al. 2023)."""

from collections.abc import Sequence

import numpy as np

RAW = -1  # the sample's own caption


def caption_score(alignment: np.ndarray, concreteness: np.ndarray | float, icc_weight: float) -> np.ndarray:
    """(1 − w) · cosine + w · ICC, row by row."""
    return np.asarray((1 - icc_weight) * alignment + icc_weight * concreteness)


def best_caption(is_raw_kept: np.ndarray, raw: np.ndarray, generated: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) bool, (N,) scores of own captions, N arrays of scores of generated ones → (N,) RAW or the generated one's
    number. The own caption stays where it is kept, where there is no other, and where no other is better.
    """
    chosen = np.full(len(raw), RAW, dtype=np.int64)
    for row, scores in enumerate(generated):
        if not is_raw_kept[row] and len(scores) and scores.max() > raw[row]:
            chosen[row] = int(scores.argmax())
    return chosen
