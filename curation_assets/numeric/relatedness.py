"""Relatedness of Rao et al.: how near is a text to the texts of a downstream task, by TF-IDF? Sparse throughout."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts load on first use

WORD = re.compile(r"[a-z0-9']+")


def words_of(text: str) -> list[str]:
    """Words in lower case, repeats kept: letters of the English alphabet, digits and apostrophes. formulas.md §8.1."""
    return WORD.findall(text.lower())


def add_document_frequencies(frequencies: Counter[str], texts: Iterable[str]) -> int:
    """Count in how many texts each word occurs, into `frequencies`; how many texts there were.

    Called once per shard, so a pool is never in memory, only its vocabulary.
    """
    count = 0
    for text in texts:
        frequencies.update(set(words_of(text)))
        count += 1
    return count


@dataclass(frozen=True)
class WordWeights:
    """What the pool and the downstream texts show of each word. Shapes: V words."""

    words: tuple[str, ...]  # (V,) sorted
    idf: np.ndarray  # (V,) log(|D| / df), not smoothed: 0 for a word of every text
    target: np.ndarray  # (V,) sum of the unit vectors of the downstream texts

    def __post_init__(self) -> None:
        if not len(self.words) == len(self.idf) == len(self.target):
            raise ValueError(f"expected columns of one length, got {len(self.words)}, {len(self.idf)}")
        object.__setattr__(self, "_index_of", {word: i for i, word in enumerate(self.words)})

    def tfidf(self, texts: Sequence[str]) -> "scipy.sparse.csr_matrix":
        """(N, V) counts · idf of the words that are known; others are ignored."""
        index_of: Mapping[str, int] = self._index_of  # type: ignore[attr-defined]
        data, columns, ends = [], [], [0]
        for text in texts:
            for word, count in Counter(words_of(text)).items():
                position = index_of.get(word)
                if position is not None and self.idf[position] != 0:
                    data.append(count * self.idf[position])
                    columns.append(position)
            ends.append(len(data))
        return scipy.sparse.csr_matrix(
            (np.array(data, dtype=np.float64), columns, ends), shape=(len(texts), len(self.words))
        )


def fit_word_weights(frequencies: Mapping[str, int], text_count: int, downstream: Iterable[str]) -> WordWeights:
    """Weights from the document frequencies of `text_count` pool texts, and the downstream texts, read once.

    Raises ValueError for frequencies above `text_count`, or without any downstream text.
    """
    wrong = [word for word, count in frequencies.items() if not 0 < count <= text_count]
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} occurs in {frequencies[wrong[0]]} of {text_count} texts; count texts, not words"
        )
    words = tuple(sorted(frequencies))
    idf = np.array([math.log(text_count / frequencies[word]) for word in words])
    weights = WordWeights(words, idf, np.zeros(len(words)))
    target, count, waiting = np.zeros(len(words)), 0, list[str]()
    for text in downstream:
        count += 1
        waiting.append(text)
        if len(waiting) == 10_000:
            target, waiting = target + _unit_sum(weights, waiting), []
    if not count:
        raise ValueError("relatedness needs downstream texts to relate to, got none")
    return WordWeights(words, idf, target + _unit_sum(weights, waiting))


def relatedness(texts: Sequence[str], weights: WordWeights) -> np.ndarray:
    """(N,) sum over the downstream texts of the cosine with each text, in [0, number of them]. 0 for no known word.

    Σ cos(K, Q) = K̂ · Σ Q̂: one sparse product, however many downstream texts there are (formulas.md §8.1).
    """
    rows = weights.tfidf(texts)  # (N, V)
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())  # (N,)
    return np.divide(rows @ weights.target, norms, out=np.zeros(len(texts)), where=norms > 0)


def _unit_sum(weights: WordWeights, texts: Sequence[str]) -> np.ndarray:
    rows = weights.tfidf(texts)
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    inverse = np.divide(1.0, norms, out=np.zeros(len(texts)), where=norms > 0)
    return np.asarray(rows.T @ inverse).ravel()  # (V,)
