"""Concepts of captions: which entries of a list a caption holds, how full each is, and who may stay (MetaCLIP)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

PADDED = re.compile(r"([,.;:?!])")  # gets blanks around it
BLANKS = re.compile(r"[\t\r\n]")
#: Thai, Lao, Tibetan, Myanmar, Khmer; kana; Han.
UNSPACED = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
SHORTEST = 3  # letters of a noun
WORD = re.compile(r"[^\W\d_][\w'’-]*")  # begins with a letter


def padded(text: str, ignore_case: bool = True) -> str:
    """With blanks around punctuation and at both ends, so that " entry " is a substring where the entry is meant.

    MetaCLIP (Xu et al. 2023) §3.2; "Logo, red" → " logo ,  red ".
    """
    text = PADDED.sub(r" \1 ", BLANKS.sub(" ", text))
    return f" {text.lower() if ignore_case else text} "


class EntryMatcher:
    """Which entries of a list a caption holds as whole words (Aho–Corasick: all entries in one pass)."""

    def __init__(self, entries: Sequence[str], ignore_case: bool = True) -> None:
        import ahocorasick

        self.ignore_case = ignore_case
        self._automaton = ahocorasick.Automaton()
        for number, entry in enumerate(entries):
            self._automaton.add_word(f" {entry.lower() if ignore_case else entry} ", number)
        if len(entries):
            self._automaton.make_automaton()

    def match(self, captions: Sequence[str]) -> "Matches":
        """(N,) captions → their entries, each once and ascending."""
        found: list[list[int]] = []
        for caption in captions:
            text = padded(caption, self.ignore_case)
            found.append(sorted({number for _, number in self._automaton.iter(text)}) if len(self._automaton) else [])
        lengths = np.fromiter((len(numbers) for numbers in found), np.int64, len(found))
        flat = np.fromiter((number for numbers in found for number in numbers), np.int64, int(lengths.sum()))
        return Matches(np.repeat(np.arange(len(found)), lengths), flat, len(found))


def nouns_of(lemmas: Iterable[str]) -> list[str]:
    """Nouns of WordNet that can be concepts: three letters or more, no stop words ("a" and "in" are nouns there)."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return [word for word in lemmas if len(word) >= SHORTEST and word not in ENGLISH_STOP_WORDS]


def concepts_of(
    captions: Sequence[str], nouns: Sequence[str], objects: Iterable[Sequence[str] | None] | None = None
) -> list[list[str]]:
    """(N,) captions, and labels of detected objects → concepts of each, every one once and sorted.

    Of a label with synonyms ("logo, emblem") the first counts.
    """
    matches = EntryMatcher(nouns).match(captions)
    found: list[set[str]] = [set() for _ in captions]
    for row, item in zip(matches.row.tolist(), matches.item.tolist(), strict=True):
        found[row].add(nouns[item])
    if objects is not None:
        for names, labels in zip(found, objects, strict=True):
            names.update(label.partition(",")[0].lower() for label in labels or [])
    return [sorted(names) for names in found]


class Matches(NamedTuple):
    """Pairs of a row and what it holds, sorted by row."""

    row: np.ndarray  # (P,) int64
    item: np.ndarray  # (P,) int64
    rows: int  # N, with those that hold nothing


def frequent_ngrams(captions: Iterable[str], least: int, longest: int = 2, ignore_case: bool = True) -> Counter[str]:
    """n-grams of 1 … `longest` neighbouring words that at least `least` captions hold, and how many do."""
    counts: Counter[str] = Counter()
    for caption in captions:
        runs: list[list[str]] = [[]]
        for token in padded(caption, ignore_case).split():
            if WORD.fullmatch(token):
                runs[-1].append(token)
            else:
                runs.append([])  # no n-gram across punctuation
        counts.update(
            {
                " ".join(run[start : start + size])
                for run in runs
                for size in range(1, longest + 1)
                for start in range(len(run) - size + 1)
            }
        )
    return Counter({gram: count for gram, count in counts.items() if count >= least})


def limit_of_tail(counts: np.ndarray, tail_share: float) -> float:
    """The limit t below which entries hold `tail_share` of all matches. (E,) counts → t ≥ 1.

    MetaCLIP 2 (2025, arXiv 2507.22062): 6 %, the share that t = 20,000 gave on 400 M pairs. [1, 1, 2, 6] at .4: t = 2.
    """
    used = np.sort(counts[counts > 0])
    if not len(used):
        return 1.0
    share = np.cumsum(used) / used.sum()
    return float(used[min(int(np.searchsorted(share, tail_share)), len(used) - 1)])


def tail_share_of(counts: np.ndarray, limit: float) -> float:
    """Share of all matches that entries of at most `limit` captions hold: the inverse of `limit_of_tail`, in [0, 1].

    [1, 1, 2, 6] at t = 2: .4.
    """
    return float(counts[counts <= limit].sum() / max(counts.sum(), 1))


def with_spaced_characters(text: str) -> str:
    """Blanks around each character of scripts that write no blanks between words (Han, kana, Thai, Lao, Khmer, …), so
    that n-grams of words become n-grams of characters there."""
    return UNSPACED.sub(r" \g<0> ", text)


def keep_probabilities(matches: Matches, counts: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """MetaCLIP: P(keep) = 1 − Π over a caption's entries of (1 − min(1, t / count)). → (N,), and (N,) the entry that
    counts most: the rarest (ties: the first), -1 and probability 0 where there is none.
    """
    share = np.minimum(1.0, limit / np.maximum(counts[matches.item], 1))  # (P,)
    lost = np.ones(matches.rows)
    np.multiply.at(lost, matches.row, 1.0 - share)
    rarest = np.full(matches.rows, -1, dtype=np.int64)
    order = np.lexsort((matches.item, counts[matches.item], matches.row))
    row, first = np.unique(matches.row[order], return_index=True)
    rarest[row] = matches.item[order][first]
    return 1.0 - lost, rarest
