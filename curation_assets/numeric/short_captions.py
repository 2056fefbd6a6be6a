"""How much a caption of few words says: placeholders, file names, emoji and repeated words do not count as words."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_PLACEHOLDERS = """
alt avatar background badge banner button caption cover default description dsc dscf dscn figure graphic header home
icon image images img link logo null photo photograph photos pic picture pictures placeholder preview screenshot
text thumbnail title undefined untitled
"""
#: Words that name the picture itself or a part of a page, not what is in the picture. They count where a caption has
#: more than MOST words.
PLACEHOLDERS = frozenset(_PLACEHOLDERS.split())
FILE_ENDINGS = (".avif", ".bmp", ".gif", ".heic", ".jpeg", ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp")
MOST = 3  # words; a caption of more is as good as its words are
EDGES = string.punctuation + "“”‘’…"


def informative_words(caption: str) -> int:
    """Distinct words that hold a letter and name no image file, at most MOST + 1; where there are no more than MOST,
    without PLACEHOLDERS.

    'dog dog' → 1, 'logo' → 0, 'IMG_2031' → 0, 'red-dog.jpg' → 0, 'a photo of two dogs' → 4.
    """
    words: set[str] = set()
    for token in caption.lower().split():
        word = token.strip(EDGES)
        if any(map(str.isalpha, word)) and not word.endswith(FILE_ENDINGS):
            words.add(word)
            if len(words) > MOST:
                return MOST + 1
    return sum("".join(filter(str.isalpha, word)) not in PLACEHOLDERS for word in words)


@dataclass(frozen=True)
class ShortCaptions:
    """What a value of a caption of few words is worth: its height above `floor` times the share of its word count."""

    shares: tuple[float, ...]  # for 0, 1, … MOST informative words; captions with more keep their value
    floor: float  # lowest value that the student gives

    def __post_init__(self) -> None:
        if len(self.shares) != MOST + 1 or not all(0 <= share <= 1 for share in self.shares):
            raise ValueError(
                f"shares must be {MOST + 1} numbers in [0, 1], one for 0 to {MOST} words, got {self.shares}"
            )

    @classmethod
    def of_card(cls, card: Mapping[str, Any]) -> "ShortCaptions | None":
        """What a student's card states under `short_captions`, None where it states nothing."""
        stated = card.get("short_captions")
        return None if stated is None else cls(tuple(stated["shares"]), float(stated["floor"]))

    def adjusted(self, captions: Sequence[str], values: np.ndarray) -> np.ndarray:
        """(N,) captions and their values → (N,): floor + share · (value − floor); the order within a count stays."""
        shares = np.array([*self.shares, 1.0])
        counts = np.array([informative_words(caption) for caption in captions], dtype=np.int64)
        return np.where(counts <= MOST, self.floor + shares[counts] * (values - self.floor), values)
