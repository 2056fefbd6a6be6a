"""Which words push a text's score: leave one out and look."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WORD = re.compile(r"\S+")

#: (M,) texts → (M,) scores.
ScoreTexts = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Explanation:
    """A score and what each word does to it."""

    score: float  # of the whole text, in the scorer's unit
    words: tuple[str, ...]  # whitespace tokens, in order
    effects: np.ndarray  # (W,) score with the word − score without it: positive words raise the score


def without_each_word(text: str) -> list[tuple[str, str]]:
    """Every word with the text that is left when it is taken out, together with the blanks before it."""
    matches = list(WORD.finditer(text))
    return [
        (match.group(), (text[: matches[i - 1].end() if i else match.start()] + text[match.end() :]).strip())
        for i, match in enumerate(matches)
    ]


def occlusion(text: str, score_texts: ScoreTexts) -> Explanation:
    """Effect of each word by occlusion (Zeiler & Fergus 2014 §4.2, for words): all texts are scored in one call.

    Effects need not add up to the score: words act together. Raises ValueError for a text of fewer than two words
    (without its only word nothing is left to score) and for scores that are not finite.
    """
    pairs = without_each_word(text)
    if len(pairs) < 2:
        raise ValueError(f"an explanation needs at least two words, got {len(pairs)}: {text!r}")
    scores = np.asarray(score_texts([text, *(rest for _, rest in pairs)]), dtype=np.float64)  # (1 + W,)
    if scores.shape != (1 + len(pairs),) or not np.isfinite(scores).all():
        raise ValueError(f"expected {1 + len(pairs)} finite scores, got {scores}")
    return Explanation(float(scores[0]), tuple(word for word, _ in pairs), scores[0] - scores[1:])
