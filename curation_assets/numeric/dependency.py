"""Tokens of a parsed text, with the two label sets that parsers of English use."""

from typing import NamedTuple


class Token(NamedTuple):
    """One token of a parsed text."""

    text: str
    pos: str  # universal part of speech: NOUN, PROPN, VERB, AUX, …
    tag: str  # Penn Treebank tag: NN, VBG, …
    dep: str  # relation to the head: Universal Dependencies (nsubj:pass, obl, nmod) or spaCy's (nsubjpass, pobj)
    head: int  # position of the head in the text; its own position for a root
    #: OntoNotes label of the named entity that the token begins or continues ("B-PERSON", "I-PERSON"), "" outside of
    #: any; None: the parser recognises no entities.
    entity: str | None = None


def dependents(tokens: list[Token]) -> list[list[int]]:
    """Per token the positions of its direct dependents, in order."""
    children: list[list[int]] = [[] for _ in tokens]
    for i, token in enumerate(tokens):
        if token.head != i:
            children[token.head].append(i)
    return children


def is_root(tokens: list[Token], position: int) -> bool:
    """Whether a token is the root of its sentence."""
    return tokens[position].head == position


def base_label(dep: str) -> str:
    """The relation without its subtype, lower-case: 'nsubj:pass' → 'nsubj'."""
    return dep.partition(":")[0].lower()


def entity_spans(tokens: list[Token]) -> list[tuple[str, list[int]]]:
    """Label and positions of every named entity, in order; none where the parser recognises none."""
    spans: list[tuple[str, list[int]]] = []
    for i, token in enumerate(tokens):
        place, _, label = (token.entity or "").partition("-")
        if place == "B":
            spans.append((label, [i]))
        elif place == "I":
            spans[-1][1].append(i)
    return spans
