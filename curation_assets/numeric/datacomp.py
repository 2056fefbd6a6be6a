"""DataComp's rules on a caption and on the size of its image (Gadre et al. 2023 §3.2; exact numbers formulas.md
§3.2)."""

import re
from typing import NamedTuple

ENGLISH = "en"
#: What fastText's tokeniser splits at.
FASTTEXT_BLANKS = re.compile(r"[ \n\t\v\f\r\0]+")
MIN_WORDS, MIN_CHARACTERS = 2, 5  # of basic filtering: strictly more than these
MIN_WORDS_IMAGE_BASED = 1  # of the caption filter before image-based filtering, words as fastText splits them
MIN_SIDE_PX, MAX_ASPECT_RATIO = 200, 3.0


class Broken(NamedTuple):
    """A rule that a sample breaks, with the value that breaks it."""

    rule: str
    value: float


def broken_caption_rule(caption: str) -> Broken | None:
    """Basic filtering: more than 2 words between white space and more than 5 characters, all characters counted."""
    word_count = len(caption.split())
    if word_count <= MIN_WORDS:
        return Broken("too_few_words", word_count)
    return Broken("too_few_characters", len(caption)) if len(caption) <= MIN_CHARACTERS else None


def broken_image_based_caption_rule(caption: str) -> Broken | None:
    """Image-based filtering: more than 1 word, split as fastText does, and more than 5 characters."""
    word_count = sum(bool(word) for word in FASTTEXT_BLANKS.split(caption))
    if word_count <= MIN_WORDS_IMAGE_BASED:
        return Broken("too_few_words", word_count)
    return Broken("too_few_characters", len(caption)) if len(caption) <= MIN_CHARACTERS else None


def broken_size_rule(
    width: int, height: int, min_side_px: int = MIN_SIDE_PX, max_aspect_ratio: float = MAX_ASPECT_RATIO
) -> Broken | None:
    """Basic filtering: shorter side ≥ 200 px and longer ÷ shorter ≤ 3. Sizes in px; below 1 is `too_small`.

    Raises ValueError for limits that no image could break or meet: below 1.
    """
    if min_side_px < 1 or max_aspect_ratio < 1:
        raise ValueError(f"min_side_px and max_aspect_ratio must be at least 1, got {min_side_px}, {max_aspect_ratio}")
    shorter, longer = sorted((width, height))
    if shorter < min_side_px:
        return Broken("too_small", shorter)
    return Broken("too_elongated", longer / shorter) if longer / shorter > max_aspect_ratio else None
