"""Text transformation: names become what they name ("actor"), places, dates and numerals go, equal nouns merge.

Sharma et al. 2018 §3, last stage (formulas.md §7.4). The paper uses a knowledge graph and an entity recogniser; here
names
are runs of proper nouns, and what they name is looked up by the caller (WordNet's instances, or a list of one's own).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from curation_assets.numeric.conceptual_captions import Drop
from curation_assets.numeric.dependency import Token, base_label, dependents

Kind = Literal["place", "time", "thing"]
MODIFIER_LABELS = ("compound", "amod", "nmod", "flat", "poss")
#: Prepositions whose phrase goes where the name in it is a place, a time, or unknown: where, when and by whom.
REMOVABLE = ("in", "at", "near", "from", "on", "by", "to", "through", "outside", "inside", "during", "since", "around")
LONGEST_NAME = 6  # words
IRREGULAR_PLURALS = {"man": "men", "woman": "women", "person": "people", "child": "children", "foot": "feet"}


@dataclass(frozen=True)
class Meaning:
    """What a name stands for: "Los Angeles" is a city, a place."""

    noun: str
    kind: Kind


@dataclass(frozen=True)
class Transformed:
    """A caption after the transformation, or why it is dropped."""

    text: str  # lower-case tokens with blanks between
    concepts: list[str]  # distinct nouns in dictionary form, sorted
    drop: Drop | None


#: A run of proper nouns, or a single one that is no name ("Kite" in a title) → its meaning; None for an unknown name.
MeaningOf = Callable[[str], Meaning | None]


def transform(
    tokens: list[Token],
    meaning_of: MeaningOf,
    *,
    is_common: Callable[[str], bool],
    is_proper_adjective: Callable[[str], bool],
    noun_lemma: Callable[[str], str],
    is_listed: Callable[[str], bool] = lambda text: False,
    min_words: int = 3,
) -> Transformed:
    """Transform one parsed caption. docs/formulas.md §7.4.

    `is_listed`: words that are a name whatever the tagger's label.

    `is_common`: a proper noun that is a common one in a dictionary, so it is left alone. `is_proper_adjective`:
    "Italian". `noun_lemma`: "dogs" → "dog". Dropped: `unknown_name` (value: how many), `too_short_after` (value: words
    left), `no_noun_after`.
    """
    work = _Work(tokens)
    unknown: list[str] = []
    for run in _names(tokens, is_common, is_listed):
        text = " ".join(tokens[i].text for i in run)
        if not any(work.kept[i] for i in run):
            continue  # removed with a phrase around it
        head = _head(tokens, run)
        meaning = meaning_of(text)
        if _modifies_noun(tokens, run, head):
            work.remove(run)
        elif meaning is not None and meaning.kind in ("place", "time"):
            phrase = work.phrase(head)
            if phrase is not None:
                work.remove(phrase)
            elif meaning.kind == "time":
                work.remove(run)
            else:
                work.name(run, head, meaning.noun)
        elif meaning is not None:
            work.name(run, head, meaning.noun)
        else:
            phrase = work.phrase(head)
            if phrase is not None and work.preposition(head) in REMOVABLE:
                work.remove(phrase)
            else:
                unknown.append(text)
    for i, token in enumerate(tokens):
        if token.pos == "ADJ" and base_label(token.dep) == "amod" and is_proper_adjective(token.text):
            work.remove([i])
        if token.pos == "NUM" and any(character.isdigit() for character in token.text):
            phrase = work.phrase(i) if work.preposition(i) in REMOVABLE else None
            work.remove(phrase or [i])
    words, concepts = work.result(noun_lemma)
    text = _merged(words, noun_lemma)
    if unknown:
        return Transformed(text, concepts, Drop("unknown_name", len(unknown), unknown[0]))
    count = sum(any(character.isalnum() for character in word) for word in text.split())
    if count < min_words:
        return Transformed(text, concepts, Drop("too_short_after", count))
    return Transformed(text, concepts, None if concepts else Drop("no_noun_after", 0))


class _Work:
    """Which tokens stay, and what stands in the place of a name."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.children = dependents(tokens)
        self.kept = [True] * len(tokens)
        self.instead: dict[int, str] = {}

    def remove(self, positions: list[int] | None) -> None:
        for i in positions or ():
            self.kept[i] = False
            self.instead.pop(i, None)

    def subtree(self, head: int) -> list[int]:
        members, waiting, seen = [], [head], set[int]()
        while waiting:
            here = waiting.pop()
            if here not in seen:
                seen.add(here)
                members.append(here)
                waiting += self.children[here]
        return sorted(members)

    def preposition(self, head: int) -> str | None:
        """The preposition before a noun, in either label set; None where there is none."""
        case = self._case(head)
        return None if case is None else self.tokens[case].text.lower()

    def phrase(self, head: int) -> list[int] | None:
        """The prepositional phrase of a noun with all that hangs on it; None where there is no preposition."""
        case = self._case(head)
        if case is None:
            return None
        return self.subtree(head) if self.tokens[case].head == head else self.subtree(case)

    def _case(self, head: int) -> int | None:
        above = self.tokens[head].head
        if base_label(self.tokens[head].dep) == "pobj" and self.tokens[above].pos == "ADP":
            return above
        return next((i for i in self.children[head] if base_label(self.tokens[i].dep) == "case"), None)

    def name(self, run: list[int], head: int, noun: str) -> None:
        """Put `noun` in the place of a name; what described the name goes with it ("former")."""
        described = [
            i
            for i in self.children[head]
            if i not in run and base_label(self.tokens[i].dep) in ("amod", "compound", "det", "nummod", "appos")
        ]
        for i in described:
            self.remove(self.subtree(i))
        self.remove(run)
        self.kept[head], self.instead[head] = True, noun

    def result(self, noun_lemma: Callable[[str], str]) -> tuple[list[str], list[str]]:
        words, concepts = [], set[str]()
        for i, token in enumerate(self.tokens):
            if not self.kept[i]:
                continue
            word = self.instead.get(i, token.text).lower()
            words.append(word)
            if i in self.instead or token.pos in ("NOUN", "PROPN"):
                concepts.add(noun_lemma(word))
        return words, sorted(concepts)


def _names(tokens: list[Token], is_common: Callable[[str], bool], is_listed: Callable[[str], bool]) -> list[list[int]]:
    """Listed names, longest first, and runs of neighbouring proper nouns.

    A single proper noun that the dictionary knows as a common noun is no name.
    """
    runs: list[list[int]] = []
    start = 0
    while start < len(tokens):
        ends = range(min(len(tokens), start + LONGEST_NAME), start, -1)
        end = next((e for e in ends if is_listed(" ".join(token.text for token in tokens[start:e]))), None)
        if end is None and tokens[start].pos == "PROPN":
            end = next((e for e in range(start + 1, len(tokens)) if tokens[e].pos != "PROPN"), len(tokens))
            if end == start + 1 and is_common(tokens[start].text):
                end = None
        if end is not None:
            runs.append(list(range(start, end)))
        start = end if end is not None else start + 1
    return runs


def _head(tokens: list[Token], run: list[int]) -> int:
    """The token of a run that hangs on something outside it."""
    return next((i for i in run if tokens[i].head not in run or tokens[i].head == i), run[-1])


def _modifies_noun(tokens: list[Token], run: list[int], head: int) -> bool:
    """Whether a name stands before the common noun that it describes: "Ferrari car"."""
    above = tokens[head].head
    return above > run[-1] and tokens[above].pos == "NOUN" and base_label(tokens[head].dep) in MODIFIER_LABELS


def plural_of(noun: str) -> str:
    """ "actor" → "actors", "box" → "boxes", "city" → "cities", "person" → "people"."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(?:s|x|z|ch|sh)$", noun) else "s")


def _merged(words: list[str], noun_lemma: Callable[[str], str]) -> str:
    """Text of the words: "actor and actor" → "actors", no separator at either end, no two in a row."""
    text = " ".join(words)
    same = re.compile(r"\b([\w' -]+?)(?: , \1)*(?: ,)? and \1\b")
    text = same.sub(lambda match: plural_of(noun_lemma(match.group(1))), text)
    while True:
        shorter = re.sub(r"(?: [,;:–—-])+(?= [,;:.–—-])", "", text)
        shorter = re.sub(
            r"^(?:[,;:.–—-]|and|or|of|with|in|at|on|by) | (?:[,;:–—-]|and|or|of|with|in|at|on|by)$", "", shorter
        )
        shorter = re.sub(r"^(?:[,;:.–—-]|and|or)$", "", shorter)
        if shorter == text:
            return " ".join(text.split())
        text = shorter
