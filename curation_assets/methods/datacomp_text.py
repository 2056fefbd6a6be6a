"""DataComp's text-based filter: an English caption with a word whose first sense is in a list of WordNet ids."""

import re
from collections.abc import Set

import numpy as np

from curation_assets.core.roles import LanguageIdentifier, Synset, Texts, Wordnet
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier
from curation_assets.numeric.datacomp import ENGLISH

WORDNET_ID = re.compile(r"n?[0-9]{8}")


def datacomp_text(
    caption: Texts,
    language_identifier: LanguageIdentifier,
    wordnet: Wordnet,
    wordnet_offsets: Set[int] | None = None,
) -> Values:
    """1 where the likeliest language is English and a word's first sense is listed, else 0. formulas.md §3.2.

    As in the reference, a word is what stands between blanks, punctuation included ("dog," has no
    sense); only its first sense counts, whatever the part of speech; and offsets are compared
    without the part of speech. The setting `wordnet_ids` names the list (ImageNet-21k's: one
    n######## a line).
    Details: rule (`not_english`, `no_listed_word` or null), word (the first that is listed), language.
    Reason: `no_wordnet_ids` where no list is given.
    """
    if wordnet_offsets is None:
        n = len(caption)
        details: Columns = dict.fromkeys(("rule", "word", "language"), [None] * n)
        return Values(np.full(n, np.nan), ["no_wordnet_ids"] * n, details)
    languages, _ = language_identifier.identify_languages(caption)
    rules: list[str | None] = []
    words: list[str | None] = []
    for text, language in zip(caption, languages, strict=True):
        rule, listed_word = "not_english", None
        if language == ENGLISH:
            listed_word = next((word for word in text.split() if _is_listed(word, wordnet, wordnet_offsets)), None)
            rule = "no_listed_word"
        rules.append(rule if listed_word is None else None)
        words.append(listed_word)
    return Values.of(np.array([float(rule is None) for rule in rules]), rule=rules, word=words, language=languages)


def _is_listed(word: str, wordnet: Wordnet, offsets: Set[int]) -> bool:
    senses = wordnet.synsets(word)
    return bool(senses) and senses[0].offset in offsets


def parse_wordnet_ids(columns: Columns) -> frozenset[int]:
    """Offsets of ids such as n02084071. Raises ValueError for a line of another form, or an empty list."""
    lines = columns["line"]
    wrong = [line for line in lines if not WORDNET_ID.fullmatch(line)]
    if wrong or not lines:
        raise ValueError(f"expected WordNet ids such as n02084071, one a line, got {wrong[0] if wrong else 'none'!r}")
    return frozenset(int(line.removeprefix("n")) for line in lines)


class _ExampleWordNet:
    """Dogs and running; only the dog is an animal."""

    def synsets(self, word: str, pos: str = "nvar") -> list[Synset]:
        offsets = {"dog": (2084071, "n"), "dogs": (2084071, "n"), "running": (7451463, "n")}
        if word not in offsets:
            return []
        offset, part_of_speech = offsets[word]
        return [Synset(offset, part_of_speech, (word,), 5, (), ())]

    def synset(self, offset: int, pos: str = "n") -> Synset:
        raise ValueError(f"no sense at offset {offset}")


METHOD = Method(
    function=datacomp_text,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="DataComp (Gadre et al. 2023) §3.2, text-based filtering; formulas.md §3.2",
    summary="1 where the caption is English and one of its words is an object of ImageNet-21k, else 0.",
    made_for=("abstract", "foreign"),
    known_limits={"abstract": "abstract captions name people and things too"},
    file_settings={"wordnet_ids": FileSetting("wordnet_offsets", parse_wordnet_ids, is_list=True)},
    example=Example(
        columns={"caption": ["two dogs", "a dog, running", "der dog", "nothing"]},
        value=[1.0, 0.0, 0.0, 0.0],  # listed; "dog," has no sense, running is not listed; German; no word known
        roles={"language_identifier": ExampleIdentifier(), "wordnet": _ExampleWordNet()},
        settings={"wordnet_offsets": frozenset({2084071})},
    ),
)
