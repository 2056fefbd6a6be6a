"""The two benchmarks of a concreteness score: which captions and which words belong to them."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MIN_CHARACTERS = 10
MAX_CAPITALISED_SHARE = 0.80
MIN_STOP_WORDS = 2
STOP_WORD_SHARE = 0.20

#: Unigram nouns of the whole list of Brysbaert et al. 2014; the ICC paper prints 14,562 (formulas.md §1.9).
UNIGRAM_NOUNS_OF_THE_FULL_LIST = 14_592

_PRONOUNS = (
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself "
    "it its itself they them their theirs themselves what which who whom this that these those "
    "you're you've you'll you'd she's it's that'll"
)
_VERBS = (
    "am is are was were be been being have has had having do does did doing can will should now just don ain aren "
    "couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn don't should've "
    "aren't couldn't didn't doesn't hadn't hasn't haven't isn't mightn't mustn't needn't shan't shouldn't wasn't "
    "weren't won't wouldn't s t d ll m o re ve y"
)
_OTHER = (
    "a an the and but if or because as until while of at by for with about against between into through during before "
    "after above below to from up down in out on off over under again further then once here there when where why how "
    "all any both each few more most other some such no nor not only own same so than too very"
)
#: The 179 English function words (with the pieces of contractions) of NLTK's list, which the benchmark's rule names.
STOP_WORDS = frozenset(f"{_PRONOUNS} {_VERBS} {_OTHER}".split())


def words_of(caption: str) -> list[str]:
    """Whitespace tokens without punctuation at their ends; tokens of punctuation alone are no words."""
    return [word for token in caption.split() if (word := token.strip(string.punctuation))]


def rule_violation(caption: str, *, as_printed: bool = False) -> str | None:
    """The first sampling rule of the caption benchmark that a caption breaks, None if it keeps all. formulas.md §1.9.

    `too_short` (< 10 characters), `too_capitalised` (> 80 % of words start with a capital), `too_few_stop_words`
    (< 2), `stop_word_share`: below 20 %. `as_printed` takes the paper's "not exceeding 20 %" instead, which only
    16 of its own 200 captions satisfy.
    """
    if len(caption) < MIN_CHARACTERS:
        return "too_short"
    words = words_of(caption)
    if words and sum(word[0].isupper() for word in words) / len(words) > MAX_CAPITALISED_SHARE:
        return "too_capitalised"
    stop_words = sum(word.lower() in STOP_WORDS for word in words)
    if stop_words < MIN_STOP_WORDS:
        return "too_few_stop_words"
    share = stop_words / len(words)
    breaks_share = share > STOP_WORD_SHARE if as_printed else share < STOP_WORD_SHARE
    return "stop_word_share" if breaks_share else None


def satisfies_rule(captions: Sequence[str], *, as_printed: bool = False) -> np.ndarray:
    """Which captions may be sampled for the caption benchmark. (N,) strings → (N,) bool. See `rule_violation`."""
    return np.array([rule_violation(caption, as_printed=as_printed) is None for caption in captions], dtype=bool)


#: An e-mail address, or a run of at least seven digits as in a telephone number.
PERSONAL_DATA = re.compile(r"[\w.+-]+@[\w-]+\.\w|(?:\d[ ()./-]{0,2}){7,}")


def sample_caption_benchmark(
    captions: Sequence[str],
    rng: np.random.Generator,
    *,
    by_rule: int = 150,
    at_random: int = 50,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn as for the paper's caption benchmark: `by_rule` that satisfy the rules, then `at_random` of the rest.

    (N,) strings → two arrays of row numbers, ascending. Each distinct caption is drawn once at most. formulas.md §1.9.
    Raises ValueError where there are too few captions, or a count is negative.
    """
    if by_rule < 0 or at_random < 0:
        raise ValueError(f"by_rule and at_random must be at least 0, got {by_rule} and {at_random}")
    first_of: dict[str, int] = {}
    for row, caption in enumerate(captions):
        first_of.setdefault(caption, row)
    rows = np.array(sorted(first_of.values()), dtype=np.int64)
    ruled = rows[satisfies_rule([captions[row] for row in rows])]
    if len(ruled) < by_rule or len(rows) < by_rule + at_random:
        raise ValueError(
            f"expected {by_rule} captions by the rules and {at_random} more; {len(ruled)} of {len(rows)} distinct "
            "captions satisfy the rules: request fewer, or give a longer file"
        )
    drawn = rng.permutation(ruled)[:by_rule]
    return np.sort(drawn), np.sort(rng.permutation(np.setdiff1d(rows, drawn))[:at_random])


#: What files in the format of Brysbaert et al. 2014 call a column → what we call it.
WORD_COLUMNS: Mapping[str, str] = {
    "Word": "word",
    "Bigram": "bigram",
    "Conc.M": "conc_mean",
    "Conc.SD": "conc_sd",
    "Dom_Pos": "pos",
}


def is_unigram_noun(bigram: Sequence[object], pos: Sequence[str | None]) -> np.ndarray:
    """Words of the word benchmark: one word, dominant part of speech noun. (N,), (N,) → (N,) bool. formulas.md §1.9.

    `bigram` reads 0 or 1, as number or text; `pos` is empty where the list knows none.
    """
    if len(bigram) != len(pos):
        raise ValueError(f"expected one part of speech per word, got {len(bigram)} and {len(pos)}")
    return np.array(
        [str(two) in ("0", "0.0") and (kind or "") == "Noun" for two, kind in zip(bigram, pos, strict=True)],
        dtype=bool,
    )


def word_ratings(table: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Lower-case word → mean concreteness (1–5), from the columns of a file in the format of Brysbaert et al. 2014.

    Also takes columns word and rating. Rows without a number are left out; of a word listed twice the first counts.
    Raises ValueError where the columns are missing or no row has a number.
    """
    columns = {WORD_COLUMNS.get(name, name): list(column) for name, column in table.items()}
    rating = next((name for name in ("conc_mean", "rating") if name in columns), None)
    if "word" not in columns or rating is None:
        raise ValueError(f"expected columns word and conc_mean (or Word and Conc.M), got {list(table)}")
    ratings: dict[str, float] = {}
    for word, text in zip(columns["word"], columns[rating], strict=True):
        try:
            value = float(text)
        except (TypeError, ValueError):
            continue
        if word and np.isfinite(value):
            ratings.setdefault(word.lower(), value)
    if not ratings:
        raise ValueError(f"no word of {len(columns['word'])} has a number in column {rating!r}")
    return ratings
