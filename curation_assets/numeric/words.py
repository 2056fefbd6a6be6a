"""Words of many texts at once, counted in their UTF-8 bytes."""

import numpy as np

#: First bytes of the characters outside ASCII that are white space: U+0085, U+00A0; U+1680; U+2000 to U+205F; U+3000.
_MAY_BEGIN_A_SPACE = (0xC2, 0xE1, 0xE2, 0xE3)


def word_counts(letters: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Runs of letters without white space of ASCII between them, per text.

    letters (B,) uint8, the texts one after the other; ends (N + 1,) int, text n is letters[ends[n]:ends[n + 1]] →
    counts (N,) int64 and is_sure (N,) bool: false where a character outside ASCII may be white space too.
    """
    counts = np.zeros(len(ends) - 1, dtype=np.int64)
    is_sure = np.ones(len(counts), dtype=bool)
    is_filled = ends[1:] > ends[:-1]
    begins = ends[:-1][is_filled]
    if not len(begins):
        return counts, is_sure
    is_letter = (letters != 32) & ((letters - np.uint8(9)) > 4)  # 9 to 13: tab, line feed, …; below 9 it wraps around
    is_first = is_letter.copy()
    is_first[1:] &= ~is_letter[:-1]
    is_first[begins] = is_letter[begins]
    counts[is_filled] = np.add.reduceat(is_first.view(np.uint8), begins, dtype=np.int64)
    if letters.max() >= _MAY_BEGIN_A_SPACE[0]:
        is_doubtful = np.isin(letters, np.array(_MAY_BEGIN_A_SPACE, dtype=np.uint8))
        is_sure[is_filled] = ~np.logical_or.reduceat(is_doubtful, begins)
    return counts, is_sure
