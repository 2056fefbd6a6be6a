"""A word's likely dictionary forms by suffix, for looking it up in a list of English words."""

import re
from collections.abc import Container, Iterator

#: (suffix, what stands in its place), tried in this order.
SUFFIXES = (
    ("'s", ""), ("’s", ""), ("ies", "y"), ("s", ""), ("es", ""), ("ying", "ie"), ("ied", "y"), ("iest", "y"),
    ("ier", "y"), ("ing", ""), ("ed", ""), ("est", ""), ("er", ""), ("ly", ""),
)  # fmt: skip
#: Suffixes that double a consonant or swallow an e.
STEM_CHANGING = ("ing", "ed", "est", "er")
MIN_LEMMA = 2  # letters
#: "rid" of "riding": were it no "ride", it would be doubled ("ridding").
DROPPED_E = re.compile(r"[^aeiou][aeiou][^aeiouwxy]$")


def candidate_lemmas(word: str) -> Iterator[str]:
    """The word itself, then what it may be an inflection of: kites → kite, running → run, riding → ride, tried → try.

    Spelling alone: "flies" becomes "fly", irregular forms ("went") are not resolved.
    """
    yield word
    for suffix, instead in SUFFIXES:
        stem = word.removesuffix(suffix)
        if stem == word or len(stem + instead) < MIN_LEMMA:
            continue
        if suffix not in STEM_CHANGING:
            yield stem + instead
        elif DROPPED_E.search(stem):
            yield from (stem + "e", stem)
        elif stem[-1:] == stem[-2:-1]:
            yield from (stem, stem[:-1])  # falling → fall, running → run
        else:
            yield from (stem, stem + "e")


def lemma_in(word: str, known: Container[str]) -> str | None:
    """The first candidate form that `known` holds, None if none. 'dogs' in {'dog'} → 'dog'."""
    return next((form for form in candidate_lemmas(word) if form in known), None)
