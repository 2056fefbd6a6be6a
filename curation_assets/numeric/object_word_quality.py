"""Quality of Rao et al.: do the caption's words name the objects in the image?"""

import re
from collections.abc import Callable, Sequence

import numpy as np

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
PAIRS = 3  # largest similarities that are added up

#: (N,) words → (N, D) vectors and (N,) bool: which are known.
WordLookup = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


def words_of(text: str) -> list[str]:
    """Distinct words in order, the first spelling of each; case distinguishes none."""
    first: dict[str, str] = {}
    for word in WORD.findall(text):
        first.setdefault(word.lower(), word)
    return list(first.values())


def label_names(label: str) -> list[list[str]]:
    """Synonyms of a label, each as its words: "stop sign,stopsign" → [["stop", "sign"], ["stopsign"]]."""
    return [words for name in label.split(",") if (words := WORD.findall(name))]


def object_word_cosines(objects: Sequence[str], words: Sequence[str], lookup: WordLookup) -> np.ndarray:
    """(O', W') cosines of the objects and words that have vectors; both counts may be 0.

    A label of several words is the mean of the vectors of its known words, of a label's synonyms the nearest counts
    (formulas.md §8.2). A label given twice counts once.
    """
    names = [label_names(label) for label in dict.fromkeys(objects)]
    looked_up = [*words, *(word for synonyms in names for name in synonyms for word in name)]
    if not words or len(looked_up) == len(words):
        return np.zeros((0, 0))
    vectors, known = lookup(looked_up)
    word_units = _units(vectors[: len(words)][known[: len(words)]])  # (W', D)
    rows, start = [], len(words)
    for synonyms in names:
        units = []
        for name in synonyms:
            here = slice(start, start + len(name))
            start += len(name)
            if known[here].any():
                units.append(_units(vectors[here][known[here]].mean(axis=0, keepdims=True))[0])
        if units and len(word_units):
            rows.append((np.stack(units) @ word_units.T).max(axis=0))  # (W',)
    return np.stack(rows) if rows else np.zeros((0, len(word_units)))


def top_pair_sum(cosines: np.ndarray, *, one_to_one: bool = False) -> float:
    """Sum of the PAIRS largest of (O, W) cosines; of what there is where they are fewer, 0 for none.

    Negative ones are kept. `one_to_one`: an object or word that was taken is taken no second time (greedy, largest
    first), so that "dog" cannot match both "dog" and "dogs".
    """
    if not one_to_one:
        return float(np.sort(cosines, axis=None)[::-1][:PAIRS].sum())
    left = cosines.copy()
    total = 0.0
    for _ in range(min(PAIRS, *cosines.shape)):
        best = np.unravel_index(int(np.nanargmax(left)), left.shape)
        total += float(left[best])
        left[best[0], :], left[:, best[1]] = np.nan, np.nan
    return total


def _units(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)
