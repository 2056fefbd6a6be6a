"""The rank of the right answer, ties counted against the model, in blocks that fit into memory."""

from collections.abc import Iterator

import numpy as np

BLOCK_BYTES = 64 * 2**20
TIE = 1e-9  # between cosines in float64, whose rounding is below 1e-12 for any width of ours


def blocks_of_rows(row_count: int, width: int) -> Iterator[slice]:
    """Slices that cover `row_count` rows: each as many rows of `width` float64 as BLOCK_BYTES hold, at least one."""
    size = max(1, BLOCK_BYTES // (8 * max(1, width)))
    for start in range(0, row_count, size):
        yield slice(start, min(start + size, row_count))


def rank_in_rows(scores: np.ndarray, right_column: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(B, C) scores → (B,) ranks from 1: 1 + the wrong columns that score at least `right` - TIE.

    `right_column` (B,) and `right` (B,): the column of the right answer in each row, and its score.
    """
    rivals = scores >= (right - TIE)[:, None]  # (B, C)
    rivals[np.arange(len(scores)), right_column] = False
    return np.asarray(1 + rivals.sum(axis=1))
