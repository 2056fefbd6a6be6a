"""Watermarks by what is read in an image: agencies' names, notices of rights, stamps, and one text all over."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from curation_assets.numeric.text_masking import WORD, TextBox, is_confirmed
from curation_assets.numeric.watermark_words import AGENCIES, PHRASES, STAMPS

Rule = Literal["agency", "notice", "stamp", "repeated"]
MIN_FUZZY_LETTERS = 8  # of a name that may be misread: one letter of it may be wrong or missing
MIN_REPEATS, MIN_WHOLE_REPEATS = 3, 2  # of a word of a tiled mark: so often, and so often with one letter lost at most
MIN_REPEATED_LETTERS = 4  # or digits, of such a word
MIN_HEIGHTS_OFF_LINE = 0.5  # deviation of such a word's places from one line, in heights of it
MIN_LETTER_SHARE = 0.5  # of all letters and digits that are read: what a mark that is no agency's name has

_NAME = r"[^\W\d_]{2,}"
_NOTICE = re.compile(
    # "© 2014 Ann Lee", "(c) Lee", "copyright by Lee"
    rf"(?:©|\(c\)|\bcopyright\b)[\s\d.,:;–-]*{_NAME}(?:\s{_NAME}){{0,2}}",
    re.IGNORECASE,
)


class Watermark(NamedTuple):
    """Which rule an image's text meets, and the text that meets it."""

    rule: Rule
    text: str


def find_watermark(boxes: Sequence[TextBox], further: Sequence[str] = ()) -> Watermark | None:
    """The first watermark by the rules agency, notice, stamp, repeated; None without one. formulas.md §14.2.

    Boxes count from two letters or digits and a confidence of .5 on. They are taken in the order given, the reading
    order of the text spotter: names and notices may stretch over several. Case, blanks and punctuation do not matter,
    except in a notice. Notices, stamps and repeats must be half of the letters read, for menus and labels have their
    words too. `further`: names that count as an agency's.
    """
    read = [box for box in boxes if is_confirmed(box)]
    words = [word for box in read for word in _words(box.text)]
    for name in (*AGENCIES, *further):
        if held := _held_name(words, "".join(_words(name))):
            return Watermark("agency", held)
    placed = [place for box in read for place in _placed_words(box)]
    enough = MIN_LETTER_SHARE * sum(len(word) for word in words)
    if (notice := _NOTICE.search(" ".join(box.text for box in read))) and _letters(notice[0]) >= enough:
        return Watermark("notice", notice[0])
    for box in read:
        if " ".join(_words(box.text)) in STAMPS and _letters(box.text) >= enough:
            return Watermark("stamp", box.text)
    for phrase in PHRASES:
        if f" {phrase} " in f" {' '.join(words)} ":
            return Watermark("stamp", phrase)
    return _repeated(placed)


def _letters(text: str) -> int:
    return sum(map(len, WORD.findall(text)))


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


def _repeated(words: Sequence[tuple[str, np.ndarray, float]]) -> Watermark | None:
    """A word that is read over and over, cut or misread too, not along one line, and makes up most of what is read.

    Tables and menus repeat words along a line, or among many others.
    """
    counts = Counter(word for word, _, _ in words if len(word) >= MIN_REPEATED_LETTERS)
    for word in sorted(counts, key=lambda word: (-counts[word], -len(word), word)):  # the likeliest reading first
        readings = [place for place in words if _is_reading_of(place[0], word)]
        whole = sum(len(read) >= max(MIN_REPEATED_LETTERS, len(word) - 1) for read, _, _ in readings)
        if len(readings) < MIN_REPEATS or whole < MIN_WHOLE_REPEATS:
            continue
        if sum(len(read) for read, _, _ in readings) < MIN_LETTER_SHARE * sum(len(read) for read, _, _ in words):
            continue
        height = float(np.median([height for _, _, height in readings]))
        if off_line(np.array([centre for _, centre, _ in readings])) >= MIN_HEIGHTS_OFF_LINE * height:
            return Watermark("repeated", word)
    return None


def _is_reading_of(read: str, word: str) -> bool:
    """Whether `read` is a part of a word, or the word but for one letter of four."""
    most = max(1, len(word) // 4)
    return read in word or Levenshtein.distance(read, word, score_cutoff=most) <= most


def off_line(points: np.ndarray) -> float:
    """Standard deviation of points across the straight line that fits them best. (K, 2), px → px; 0 up to 2 points."""
    if len(points) < 3:
        return 0.0
    return float(np.linalg.svd(points - points.mean(axis=0), compute_uv=False)[-1] / np.sqrt(len(points)))


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
