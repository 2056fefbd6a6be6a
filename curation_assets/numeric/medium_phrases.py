"""Medium phrases ("a photo of …"): words about the medium, removed before captions are compared."""

import re
from typing import Literal

Masking = Literal["clean", "repo"]

#: The reference's active list, in its order (formulas.md §2.3).
REPO_PHRASES: tuple[str, ...] = (
    "an image of",
    "a photo of",
    "stock photo",
    "photo stock",
    "a photo",
    "an image",
    "image",
    "photo",
)

#: What the clean mode removes as whole words: the list above, its forms with "of", and "(a) picture of" (SIEVE Fig. 3).
CLEAN_PHRASES: tuple[str, ...] = (
    *REPO_PHRASES,
    "image of",
    "photo of",
    "a stock photo of",
    "stock photo of",
    "a stock photo",
    "a picture of",
    "picture of",
)

_CLEAN = re.compile(
    # Longest first, so that "a photo of" is not left as "of".
    r"\b(?:" + "|".join(sorted(map(re.escape, CLEAN_PHRASES), key=len, reverse=True)) + r")\b",
    re.IGNORECASE,
)
_REPO = tuple(re.compile(re.escape(phrase), re.IGNORECASE) for phrase in REPO_PHRASES)


def mask_medium_phrases(text: str, masking: Masking = "clean") -> str:
    """`text` without medium phrases. SIEVE §3.2, formulas.md §2.3.

    clean: whole words, longest phrase first, blanks collapsed and stripped. repo: the reference's eight phrases one
    after the other as plain substrings, blanks left as they fall ("Photograph" → "graph"). Both ignore case.
    Raises ValueError for another mode.
    """
    if masking == "clean":
        return " ".join(_CLEAN.sub(" ", text).split())
    if masking == "repo":
        for phrase in _REPO:
            text = phrase.sub("", text)
        return text
    raise ValueError(f"masking must be 'clean' or 'repo', got {masking!r}")
