"""Complexity and action of a parsed caption, as Radenovic et al. describe them and as two libraries compute them.

There is no official code (formulas.md §6), so the three readings are kept apart and named.
"""

from typing import Literal, NamedTuple

from curation_assets.numeric.dependency import Token, base_label, dependents, is_root

Mode = Literal["radenovic", "fondant", "datajuicer"]
MODES: tuple[Mode, ...] = ("radenovic", "fondant", "datajuicer")

OBJECT_POS = ("NOUN", "PROPN")
#: Dependents that do not describe an object, and parts of a name, which belong to the object itself.
NO_ATTRIBUTE = ("det", "punct", "case", "compound", "flat", "fixed", "goeswith")
#: Relations of which an object is an argument: in spaCy's labels, and in Universal Dependencies, where pobj is obl of a
#: verb or nmod of a noun. Subtypes that are not listed (nmod:poss, obl:tmod) are none of these.
ARGUMENT_RELATIONS = (
    *("nsubj", "nsubjpass", "dobj", "pobj", "agent"),
    *("nsubj:pass", "nsubj:outer", "obj", "obl", "obl:agent", "nmod"),
)
ENTITY_POS = ("NOUN", "PROPN", "PRON")
ENTITY_TAGS = ("NN", "NNS", "NNP", "NNPS", "PRP")
VERB_TAGS = ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ")


class ComplexityAction(NamedTuple):
    """What was counted in one caption."""

    complexity: int
    action_count: int


def complexity_action_of(tokens: list[Token], mode: Mode = "radenovic") -> ComplexityAction:
    """Complexity and number of actions of one caption; (0, 0) for no tokens. formulas.md §6.

    radenovic: the most attributes and relations of any one NOUN or PROPN; actions are tokens with POS VERB.
    fondant: the most direct dependents of any token, determiners and punctuation included; actions are distinct VERBs
    with a dependent `nsubj`. datajuicer: the fewest edges of any entity (so ≥ 1 means all have one), an edge being its
    head or a dependent that is no punctuation; actions are VERBs with a verb tag.
    Raises ValueError for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    children = dependents(tokens)
    if mode == "fondant":
        complexity = max((len(child_tokens) for child_tokens in children), default=0)
        heads = {token.head for token in tokens if token.dep == "nsubj" and tokens[token.head].pos == "VERB"}
        return ComplexityAction(complexity, len(heads))
    if mode == "datajuicer":
        edges = [
            int(not is_root(tokens, i)) + sum(tokens[child].dep != "punct" for child in children[i])
            for i, token in enumerate(tokens)
            if token.pos in ENTITY_POS and token.tag in ENTITY_TAGS
        ]
        actions = sum(token.pos == "VERB" and token.tag in VERB_TAGS for token in tokens)
        return ComplexityAction(min(edges, default=0), actions)
    counts = [
        sum(base_label(tokens[child].dep) not in NO_ATTRIBUTE for child in children[i])
        + int(token.dep in ARGUMENT_RELATIONS)
        for i, token in enumerate(tokens)
        if token.pos in OBJECT_POS
    ]
    return ComplexityAction(max(counts, default=0), sum(token.pos == "VERB" for token in tokens))
