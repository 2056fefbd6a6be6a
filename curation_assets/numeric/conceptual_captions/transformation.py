"""Text transformation: names become what they name ("actor"), places, dates and numerals go, equal nouns merge.

Sharma et al. 2018 §3, last stage (formulas.md §7.4). The paper uses a knowledge graph and an entity recogniser. Here
names are the parser's named entities, where it recognises any, and runs of proper nouns; what they name is looked up by
the caller (a list of one's own, WordNet's instances, the entity's label).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from curation_assets.numeric.conceptual_captions import Drop
from curation_assets.numeric.dependency import Token, base_label, dependents, entity_spans

Kind = Literal["place", "time", "thing"]
MODIFIER_LABELS = ("compound", "amod", "nmod", "flat", "poss")
#: Prepositions whose phrase goes where the name in it is a place, a time, or unknown: where, when and by whom.
REMOVABLE = ("in", "at", "near", "from", "on", "by", "to", "through", "outside", "inside", "during", "since", "around")
LONGEST_NAME = 6  # words
#: OntoNotes labels of the entities that are read. A small recogniser takes too much for an organisation or a product:
#: these are names only where the tagger has a proper noun, as without a recogniser.
NAME_LABELS = ("PERSON", "GPE", "LOC", "FAC")
TIME_LABELS = ("DATE", "TIME")
MEASURE_LABELS = ("QUANTITY", "MONEY", "PERCENT")
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


@dataclass(frozen=True)
class _Name:
    """Neighbouring tokens that are one name, date or measure."""

    run: list[int]
    label: str | None  # OntoNotes label, "" for no entity, None where the parser recognises none


#: (name, its entity's label: see `_Name`) → its meaning; None for an unknown name.
MeaningOf = Callable[[str, str | None], Meaning | None]


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
    """Transform one parsed caption. formulas.md §7.4.

    `meaning_of`: what a name stands for. `is_listed`: words that are a name whatever the tagger's label.

    `is_common`: a proper noun that is a common one in a dictionary, so it is left alone. `is_proper_adjective`:
    "Italian". `noun_lemma`: "dogs" → "dog". Dropped: `unknown_name` (value: how many), `too_short_after` (value: words
    left), `no_noun_after`.
    """
    work = _Work(tokens)
    unknown: list[str] = []
    for name in _names(tokens, is_common, is_listed):
        if any(work.kept[i] for i in name.run) and not _transform_name(work, name, meaning_of):
            unknown.append(_text(tokens, name.run))
    for i, token in enumerate(tokens):
        is_origin = (token.entity or "").endswith("-NORP") or is_proper_adjective(token.text)
        if token.pos == "ADJ" and base_label(token.dep) == "amod" and is_origin:
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


def _transform_name(work: "_Work", name: _Name, meaning_of: MeaningOf) -> bool:
    """Remove a name or put what it names in its place; False for a name that is unknown and cannot go."""
    run, head = name.run, _head(work.tokens, name.run)
    if name.label in (*TIME_LABELS, *MEASURE_LABELS):
        work.remove(work.phrase(head) or run)
        return True
    is_owner = name.label == "PERSON" and base_label(work.tokens[head].dep) == "poss"
    if _modifies_noun(work.tokens, run, head) and not is_owner:
        work.remove([*run, *work.possessive(head)] if name.label else run)
        return True
    meaning = meaning_of(_text(work.tokens, run), name.label)
    phrase = work.phrase(head)
    if meaning is not None and meaning.kind in ("place", "time"):
        if phrase is not None:
            work.remove(phrase)
        elif meaning.kind == "time":
            work.remove(run)
        else:
            work.name(run, head, meaning.noun)
    elif meaning is not None:
        work.name(run, head, meaning.noun)
    elif phrase is not None and work.preposition(head) in REMOVABLE:
        work.remove(phrase)
    else:
        return False
    return True


def _text(tokens: list[Token], run: list[int]) -> str:
    return " ".join(tokens[i].text for i in run)


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

    def possessive(self, head: int) -> list[int]:
        """The 's of a noun."""
        return [i for i in self.children[head] if self.tokens[i].tag == "POS"]

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


def _names(tokens: list[Token], is_common: Callable[[str], bool], is_listed: Callable[[str], bool]) -> list[_Name]:
    """Listed names, longest first, named entities, and runs of neighbouring proper nouns.

    A single proper noun that the dictionary knows as a common noun is no name, unless it is an entity that does not
    begin the caption.
    """
    entities = {run[0]: _Name(run, label) for label, run in entity_spans(tokens) if _is_used(tokens, label, run)}
    has_recogniser = any(token.entity is not None for token in tokens)
    names: list[_Name] = []
    start = 0
    while start < len(tokens):
        ends = range(min(len(tokens), start + LONGEST_NAME), start, -1)
        end = next((e for e in ends if is_listed(_text(tokens, list(range(start, e))))), None)
        name = None if end is None else _Name(list(range(start, end)), "" if has_recogniser else None)
        if name is None and start in entities:
            name = entities[start]
            if name.run == [0] and name.label in NAME_LABELS and is_common(tokens[0].text):  # a capital that begins
                name = None
        elif name is None and tokens[start].pos == "PROPN":
            end = next(
                (e for e in range(start + 1, len(tokens)) if tokens[e].pos != "PROPN" or e in entities), len(tokens)
            )
            if end > start + 1 or not is_common(tokens[start].text):
                name = _Name(list(range(start, end)), "" if has_recogniser else None)
        if name is not None:
            names.append(name)
        start = name.run[-1] + 1 if name is not None else start + 1
    return _joined(tokens, names)


def _is_used(tokens: list[Token], label: str, run: list[int]) -> bool:
    """Whether an entity is a name, a date, a duration or a measure.

    "night" and "a sunny day" are times that an image shows, "two feet" may be a dog's.
    """
    if label in MEASURE_LABELS:
        return any(character.isdigit() for i in run for character in tokens[i].text)
    if label in TIME_LABELS:
        return any(tokens[i].pos in ("PROPN", "NUM") for i in run)
    return label in NAME_LABELS and any(tokens[i].pos == "PROPN" for i in run)


def _joined(tokens: list[Token], names: list[_Name]) -> list[_Name]:
    """Names of which one describes its neighbour are one: the title "Miss World" and the person "Ada Stone"."""
    joined: list[_Name] = []
    for name in names:
        before = joined[-1] if joined else None
        # a parser without a recogniser has no names that touch
        if before is not None and before.label is not None and before.run[-1] + 1 == name.run[0]:
            above = tokens[_head(tokens, before.run)]
            if above.head in name.run and base_label(above.dep) in MODIFIER_LABELS:
                joined[-1] = _Name([*before.run, *name.run], name.label or before.label)
                continue
        joined.append(name)
    return joined


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
