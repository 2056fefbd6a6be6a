"""Captioning metrics of tokens: BLEU-1..4, ROUGE-L and CIDEr-D over a whole evaluation set, without Java.

The tokeniser approximates the Penn Treebank one of the reference implementation: equal to it on plain captions (the
golden set of formulas.md §13.14, the table of §10.1, all of COCO's), not on arbitrary web text.
`evaluation/caption_metrics.py` takes the original where Java runs, and adds METEOR and SPICE.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.rouge.rouge import Rouge

TOKEN_METRICS = ("bleu", "rouge_l", "cider")

#: Tokens that the reference drops after tokenising. Brackets are not among them: they read "-lrb-" after
#: lower-casing, where the reference's list has "-LRB-" (formulas.md §10.1).
DROPPED_TOKENS = frozenset({"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"})

_BRACKETS = {"(": " -lrb- ", ")": " -rrb- ", "[": " -lsb- ", "]": " -rsb- ", "{": " -lcb- ", "}": " -rcb- "}
_TYPOGRAPHIC = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "…": " ... ", "–": " -- ", "—": " -- ", "½": "1/2", "£": "#"}
)
_CONTRACTED_WORDS = {
    "cannot": "can not",
    "gimme": "gim me",
    "gonna": "gon na",
    "gotta": "got ta",
    "lemme": "lem me",
    "wanna": "wan na",
}
#: Words whose full stop belongs to them in either case, and those only when capitalised (otherwise a word ends there).
_IN_EITHER_CASE = """
adm al ala apr ariz assn aug ave bldg blvd bros calif capt cf co col colo conn corp cos cpl ct dak dec dept det dr esq
est etc ext feb fla fri ft ga gen gov hon inc ind intl jan jr jul jun kan kans ky lt ltd maj mar md messrs mich minn
mme mo mon mont mr mrs ms mt neb nev nov oct okla penn ph plc pres prof rd rep rev sen sep sept sgt sq sr st supt tel
tenn thu thurs tue tues univ va vs vt wed wis wisc wyo
"""
_ABBREVIATIONS = frozenset(_IN_EITHER_CASE.split())
_CAPITALISED_ABBREVIATIONS = frozenset({"az", "ark", "del", "ill", "la", "mass", "miss", "ore", "pa", "tex", "wash"})

_URL = re.compile(r"^(?:https?://|www\.)\S+$")
_INITIALS = re.compile(r"^(?:[a-z]\.)+$|^ph\.d\.$")
_CLITIC = re.compile(r"^(.*?)(n't|'s|'re|'ve|'ll|'d|'m)$")
_MEASURE = re.compile(r"^(\d+)'(\d+)\"?$")  # feet and inches: 5'10"
_CLOCK = re.compile(r"^(\d{1,2}:\d{2})([ap]m)$")
_MIXED_NUMBER = re.compile(r"(?<!\S)(\d+) (\d+/\d+)(?!\S)")  # 22 3/4 is one token, held by a no-break space


def tokenise_caption(text: str) -> str:
    """Lower-case tokens of a caption joined by single blanks, punctuation dropped. formulas.md §10.1."""
    text = _MIXED_NUMBER.sub("\\1\u00a0\\2", text.replace("\n", " ").translate(_TYPOGRAPHIC))
    tokens: list[str] = []
    for word in re.split(r"[^\S\u00a0]+", text):
        tokens.extend([word.lower()] if _URL.match(word.lower()) else _split_word(word))
    return " ".join(token for token in tokens if token and token not in DROPPED_TOKENS)


def _split_word(word: str) -> list[str]:
    """Treebank tokens of one blank-free word."""
    if "\u00a0" in word:
        return [word]
    measure, clock = _MEASURE.match(word), _CLOCK.match(word.lower().rstrip(".,;!?"))
    if measure:
        return list(measure.groups())
    if clock:
        return list(clock.groups())
    word = re.sub(r"([!?]{2,})", r" \1 ", word)  # a run is a token of its own, and is not among the dropped ones
    word = re.sub(r'["`;]|(?<![!?])[!?](?![!?])|--+|\.{2,}', " ", word)
    word = re.sub(r"([$%]|#(?=\d))", r" \1 ", word)
    word = re.sub(r"[,:](?!\d)|(?<!\d)[,:]", " ", word)  # 1,000 and 10:30 stay whole
    word = re.sub(r"(?<!\S)-(?=[^\W\d])|(?<=[^\W\d])-(?!\S)", " ", word)  # a hyphen that joins nothing
    word = re.sub(r"(?<!\S)([/&])(?=\w)|(?<=\w)([/&])(?!\S)", r" \1\2 ", word)
    for bracket, token in _BRACKETS.items():
        word = word.replace(bracket, token)
    tokens: list[str] = []
    for part in word.split():
        tokens.extend(_split_part(part))
    return tokens


def _split_part(part: str) -> list[str]:
    if not _CLITIC.match(part.lower()):
        part = part.strip("'")  # single quotes around a word, and the bare apostrophe of a plural, are dropped
    part = re.sub(r"^\.(?=[^\W\d])", "", part)
    if not _is_abbreviation(part):
        part = part.rstrip(".")
    part = part.lower()
    if part in _CONTRACTED_WORDS:
        return _CONTRACTED_WORDS[part].split()
    clitic = _CLITIC.match(part)
    if clitic:
        return [clitic.group(1).lstrip("'"), clitic.group(2)]
    return [part]


def _is_abbreviation(part: str) -> bool:
    """Whether the full stop at the end of a word belongs to it."""
    word = part.lower()
    if not word.endswith(".") or word.endswith(".."):
        return False
    last = re.split(r"[/-]", word.removesuffix("."))[-1]  # 8th ave/cth d.
    return (
        bool(_INITIALS.match(f"{last}."))
        or last in _ABBREVIATIONS
        or (last in _CAPITALISED_ABBREVIATIONS and part[-len(last) - 1].isupper())
    )


def bleu_from_counts(
    correct: Sequence[int], guess: Sequence[int], candidate_length: int, reference_length: int
) -> list[float]:
    """BLEU-1..n from corpus counts per n-gram order, in [0, 1]. formulas.md §10.2.

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

    The reference length is the closest to the candidate's, of two equally close the shorter. formulas.md §10.2.
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


def token_metrics(
    references: Sequence[Sequence[str]], candidates: Sequence[str], metrics: Sequence[str] = TOKEN_METRICS
) -> dict[str, float]:
    """bleu_1..bleu_4, rouge_l, cider of captions as tokens joined by blanks; higher is better. formulas.md §10.

    `references`: N lists of at least one text; `candidates`: N texts, one per image. BLEU and ROUGE-L in [0, 1],
    CIDEr-D on its usual scale (0 … 10). CIDEr weighs words by how rare they are in this very set: evaluate the whole
    set in one call, never average parts; with one image it is 0. Raises ValueError for unequal or empty input.
    """
    check_captions(references, candidates)
    values: dict[str, float] = {}
    if "bleu" in metrics:
        values |= {f"bleu_{n}": score for n, score in enumerate(bleu(references, candidates), start=1)}
    if "rouge_l" in metrics:
        rouge = Rouge()
        pairs = zip(references, candidates, strict=True)
        values["rouge_l"] = float(np.mean([rouge.calc_score([candidate], texts) for texts, candidate in pairs]))
    if "cider" in metrics:
        cider = CiderScorer(n=4, sigma=6.0)
        for texts, candidate in zip(references, candidates, strict=True):
            cider += (candidate, texts)
        values["cider"] = float(cider.compute_score()[0])
    return values


def check_captions(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> None:
    """Raises ValueError unless there is one candidate per list of references, and every list has one at least."""
    if len(references) != len(candidates) or not candidates:
        raise ValueError(f"expected one candidate per list of references, got {len(candidates)} and {len(references)}")
    without = [i for i, texts in enumerate(references) if not texts]
    if without:
        raise ValueError(f"image {without[0]} has no reference caption ({len(without)} such images)")


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
