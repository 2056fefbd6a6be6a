"""Captioning metrics: BLEU-1..4, ROUGE-L and CIDEr-D over a whole evaluation set, without Java.

METEOR and SPICE exist only as Java programs and are not computed. The tokeniser approximates the Penn Treebank one:
equal to it on plain captions (the golden set of formulas.md §13.14 and the table of §10.1), not on arbitrary web text.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.rouge.rouge import Rouge

# Tokens that the reference drops after tokenising. Brackets are not among them: text is lower-cased first, so they
# read "-lrb-" where the reference's list has "-LRB-" (docs/formulas.md §10.1).
_DROPPED = frozenset({"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"})

_BRACKETS = {"(": " -lrb- ", ")": " -rrb- ", "[": " -lsb- ", "]": " -rsb- ", "{": " -lcb- ", "}": " -rcb- "}
_TYPOGRAPHIC = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "…": " ... ", "–": " -- ", "—": " -- "})
_CONTRACTED_WORDS = {"cannot": "can not", "gonna": "gon na", "gotta": "got ta", "wanna": "wan na"}

_URL = re.compile(r"^(?:https?://|www\.)\S+$")
_ABBREVIATION = re.compile(r"^(?:(?:[a-z]\.){2,}|(?:mr|mrs|ms|dr|st|jr|sr|vs|etc|prof)\.)$")
_CLITIC = re.compile(r"^(.+?)(n't|'s|'re|'ve|'ll|'d|'m)$")
_MEASURE = re.compile(r"^(\d+)'(\d+)\"?$")  # feet and inches: 5'10"
_CLOCK = re.compile(r"^(\d{1,2}:\d{2})([ap]m)$")


def tokenise_caption(text: str) -> str:
    """Lower-case tokens of a caption joined by single blanks, punctuation dropped. docs/formulas.md §10.1."""
    text = text.replace("\n", " ").translate(_TYPOGRAPHIC).lower()
    tokens: list[str] = []
    for word in text.split():
        tokens.extend([word] if _URL.match(word) else _split_word(word))
    return " ".join(token for token in tokens if token not in _DROPPED)


def _split_word(word: str) -> list[str]:
    """Treebank tokens of one blank-free word."""
    measure, clock = _MEASURE.match(word), _CLOCK.match(word.rstrip(".,;!?"))
    if measure:
        return list(measure.groups())
    if clock:
        return list(clock.groups())
    for bracket, token in _BRACKETS.items():
        word = word.replace(bracket, token)
    word = re.sub(r'["`;!?]|--+|\.{2,}', " ", word)
    word = re.sub(r"([$%])", r" \1 ", word)
    word = re.sub(r"[,:](?!\d)|(?<!\d)[,:]", " ", word)  # 1,000 and 10:30 stay whole
    tokens: list[str] = []
    for part in word.split():
        tokens.extend(_split_part(part))
    return tokens


def _split_part(part: str) -> list[str]:
    part = part.strip("'")  # single quotes around a word, and the bare apostrophe of a plural, are dropped
    if not _ABBREVIATION.match(part):
        part = part.rstrip(".")
    if part in _CONTRACTED_WORDS:
        return _CONTRACTED_WORDS[part].split()
    clitic = _CLITIC.match(part)
    if clitic:
        return [clitic.group(1), clitic.group(2)]
    return [part] if part else []


def bleu_from_counts(
    correct: Sequence[int], guess: Sequence[int], candidate_length: int, reference_length: int
) -> list[float]:
    """BLEU-1..n from corpus counts per n-gram order, in [0, 1]. docs/formulas.md §10.2.

    Precisions are smoothed as (correct + 1e-15) / (guess + 1e-9); brevity penalty exp(1 − 1 / ratio) if ratio < 1.
    """
    ratio = (candidate_length + 1e-15) / (reference_length + 1e-9)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    bleu, product = [], 1.0
    for order, (right, total) in enumerate(zip(correct, guess, strict=True), start=1):
        product *= (right + 1e-15) / (total + 1e-9)
        bleu.append(penalty * product ** (1 / order))
    return bleu


def bleu(references: Sequence[Sequence[str]], candidates: Sequence[str], orders: int = 4) -> list[float]:
    """Corpus BLEU-1..`orders` of tokenised texts, in [0, 1]. (N,) lists of references, (N,) candidates.

    The reference length is the closest to the candidate's, of two equally close the shorter. docs/formulas.md §10.2.
    """
    correct, guess = [0] * orders, [0] * orders
    candidate_length = reference_length = 0
    for texts, candidate in zip(references, candidates, strict=True):
        tokens = candidate.split()
        candidate_length += len(tokens)
        lengths = [len(text.split()) for text in texts]
        reference_length += min(lengths, key=lambda length: (abs(length - len(tokens)), length))
        for n in range(1, orders + 1):
            allowed: Counter[tuple[str, ...]] = Counter()
            for text in texts:
                allowed |= _ngrams(text.split(), n)  # the highest count over the references
            correct[n - 1] += (_ngrams(tokens, n) & allowed).total()
            guess[n - 1] += max(0, len(tokens) - n + 1)
    return bleu_from_counts(correct, guess, candidate_length, reference_length)


def captioning_metrics(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> dict[str, float]:
    """bleu_1..bleu_4, rouge_l, cider of plain (untokenised) captions; higher is better. docs/formulas.md §10.

    `references`: N lists of at least one caption; `candidates`: N captions, one per image. BLEU and ROUGE-L in [0, 1],
    CIDEr-D on its usual scale (0 … 10). CIDEr weighs words by how rare they are in this very set: evaluate the whole
    set in one call, never average parts; with one image it is 0. Raises ValueError for unequal or empty input.
    """
    if len(references) != len(candidates) or not candidates:
        raise ValueError(f"expected one candidate per list of references, got {len(candidates)} and {len(references)}")
    without = [i for i, texts in enumerate(references) if not texts]
    if without:
        raise ValueError(f"image {without[0]} has no reference caption ({len(without)} such images)")
    tokenised_references = [[tokenise_caption(text) for text in texts] for texts in references]
    tokenised = [tokenise_caption(text) for text in candidates]
    cider = CiderScorer(n=4, sigma=6.0)
    for texts, candidate in zip(tokenised_references, tokenised, strict=True):
        cider += (candidate, texts)
    rouge = Rouge()
    rouge_l = [
        rouge.calc_score([candidate], texts) for texts, candidate in zip(tokenised_references, tokenised, strict=True)
    ]
    metrics = {f"bleu_{n}": score for n, score in enumerate(bleu(tokenised_references, tokenised), start=1)}
    metrics["rouge_l"] = float(np.mean(rouge_l))
    metrics["cider"] = float(cider.compute_score()[0])
    return metrics


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
