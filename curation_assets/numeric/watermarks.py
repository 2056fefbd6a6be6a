"""Watermarks by what is read in an image: agencies' names, notices of rights, stamps, and one text on a grid."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from curation_assets.numeric.text_masking import WORD, TextBox, is_confirmed
from curation_assets.numeric.watermark_words import AGENCIES, PHRASES, STAMPS

Rule = Literal["agency", "notice", "stamp", "repeated"]
MIN_FUZZY_LETTERS = 8  # of a name that may be misread: one letter of it may be wrong or missing
MIN_REPEATS, MIN_REPEATED_LETTERS = 3, 4  # of a word on a grid: so often, so many letters or digits
MAX_HEIGHT_DIFFERENCE = 0.25  # of a word on a grid, as a share of the median height

_NAME = r"[^\W\d_]{2,}"
_NOTICE = re.compile(
    # "© 2014 Ann Lee", "(c) Lee", "copyright by Lee"; then "Lee™", "Lee (TM)"
    rf"(?:©|\(c\)|\bcopyright\b)[\s\d.,:;–-]*{_NAME}(?:\s{_NAME}){{0,2}}|{_NAME}\s*(?:™|®|\(tm\)|\(r\))",
    re.IGNORECASE,
)


class Watermark(NamedTuple):
    """Which rule an image's text meets, and the text that meets it."""

    rule: Rule
    text: str


def find_watermark(boxes: Sequence[TextBox], further: Sequence[str] = ()) -> Watermark | None:
    """The first watermark by the rules agency, notice, stamp, repeated; None without one. docs/formulas.md §14.2.

    Boxes count from two letters or digits and a confidence of .5 on. They are taken in the order given, the reading
    order of the text spotter: names and notices may stretch over several. Case, blanks and punctuation do not matter,
    except in a notice. `further`: names that count as an agency's.
    """
    read = [box for box in boxes if is_confirmed(box)]
    words = [word for box in read for word in _words(box.text)]
    for name in (*AGENCIES, *further):
        if held := _held_name(words, "".join(_words(name))):
            return Watermark("agency", held)
    if notice := _NOTICE.search(" ".join(box.text for box in read)):
        return Watermark("notice", notice[0])
    for box in read:
        if " ".join(_words(box.text)) in STAMPS:
            return Watermark("stamp", box.text)
    for phrase in PHRASES:
        if f" {phrase} " in f" {' '.join(words)} ":
            return Watermark("stamp", phrase)
    return _repeated(read)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def _held_name(words: Sequence[str], name: str) -> str | None:
    """The word that holds a name written without blanks, or the two or three words that are it together, or None.

    In one word a long name may have one letter misread or lost; words in a row must match exactly, for "big stick" is
    near "bigstock".
    """
    for word in words:
        if name and (name in word or (len(name) >= MIN_FUZZY_LETTERS and _holds_nearly(word, name))):
            return word
    runs = (words[start : start + count] for count in (2, 3) for start in range(len(words) - count + 1))
    return next((" ".join(run) for run in runs if "".join(run) == name), None)


def _holds_nearly(word: str, name: str) -> bool:
    """Whether a part of a word is a name but for one letter that is replaced, lost or added."""
    lengths = range(len(name) - 1, len(name) + 2)
    parts = (word[start : start + length] for length in lengths for start in range(len(word) - length + 1))
    return any(Levenshtein.distance(part, name, score_cutoff=1) <= 1 for part in parts)


def _repeated(boxes: Sequence[TextBox]) -> Watermark | None:
    """A word that stands three times or more in one height, each a step of one vector away from another."""
    same: dict[str, list[tuple[np.ndarray, float]]] = defaultdict(list)
    for box in boxes:
        for word, centre, height in _placed_words(box):
            if len(word) >= MIN_REPEATED_LETTERS:
                same[word].append((centre, height))
    for word, places in same.items():
        heights = np.array([height for _, height in places])
        median = float(np.median(heights))
        is_alike = np.abs(heights - median) <= MAX_HEIGHT_DIFFERENCE * median
        centres = np.array([centre for centre, _ in places])[is_alike]  # (K, 2)
        if on_grid(centres, tolerance=median) >= MIN_REPEATS:
            return Watermark("repeated", word)
    return None


def _placed_words(box: TextBox) -> list[tuple[str, np.ndarray, float]]:
    """Words of a box with their centres (2,) and their height in px, every character taken as equally wide.

    A text spotter joins neighbours of a tiled mark into one box. Corners go round from the upper left one.
    """
    corners = np.reshape(box.polygon, (-1, 2))
    left, right = (corners[0] + corners[-1]) / 2, (corners[len(corners) // 2 - 1] + corners[len(corners) // 2]) / 2
    height = float(np.linalg.norm(corners[-1] - corners[0]))
    matches = WORD.finditer(box.text)
    shares = [(match[0].casefold(), (match.start() + match.end()) / 2 / len(box.text)) for match in matches]
    return [(word, left + share * (right - left), height) for word, share in shares]


def on_grid(centres: np.ndarray, tolerance: float) -> int:
    """Largest number of points that are each one step away from another, the step being one vector for all of them.

    (K, 2), px → 0 … K. Steps tried are those from a point to its nearest neighbour; `tolerance` in px per axis.
    Three points on a line at equal distances count 3, the corners of a parallelogram 4, two points 2.
    """
    if len(centres) < 2:
        return 0
    steps = centres[None, :] - centres[:, None]  # (K, K, 2), from the first to the second
    distances = np.linalg.norm(steps, axis=2) + np.diag(np.full(len(centres), np.inf))
    tried = steps[np.arange(len(centres)), distances.argmin(axis=1)]  # (K, 2)
    counts = []
    for step in tried:
        is_step = (np.abs(steps - step) <= tolerance).all(axis=2)  # (K, K)
        np.fill_diagonal(is_step, False)
        counts.append(int((is_step.any(axis=0) | is_step.any(axis=1)).sum()))
    return max(counts)
