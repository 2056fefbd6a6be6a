"""Complexity-and-Action: does the caption describe an object, and an action?"""

import math
from typing import Literal

import numpy as np

from curation_assets.core.roles import Parser, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.complexity_action import Mode, complexity_action_of
from curation_assets.numeric.dependency import Token


def complexity_action(
    caption: Texts,
    parser: Parser,
    mode: Mode = "radenovic",
    min_complexity: int = 1,
    min_actions: int = 1,
    value: Literal["predicate", "complexity"] = "predicate",
) -> Values:
    """1 where complexity ≥ `min_complexity` and actions ≥ `min_actions`, else 0. formulas.md §6, which explains `mode`.

    value 'predicate': a policy that wants exactly n samples then decides among the passing ones by sample_id, which is
    a fixed uniform draw. value 'complexity': passing captions are worth their complexity, so richer ones come first.
    Details: complexity, action_count.
    Raises ValueError for an unknown mode or value.
    """
    if value not in ("predicate", "complexity"):
        raise ValueError(f"value must be 'predicate' or 'complexity', got {value!r}")
    counts = [complexity_action_of(tokens, mode) for tokens in parser.parse_texts(caption)]
    passes = [counted.complexity >= min_complexity and counted.action_count >= min_actions for counted in counts]
    worth = [counted.complexity if value == "complexity" else 1 for counted in counts]
    return Values.of(
        np.where(passes, worth, 0),
        complexity=[counted.complexity for counted in counts],
        action_count=[counted.action_count for counted in counts],
    )


class _ExampleParser:
    """Three captions, parsed by hand with Universal Dependencies."""

    def parse_texts(self, texts: Texts) -> list[list[Token]]:
        parsed = {
            "red shoe": [Token("red", "ADJ", "JJ", "amod", 1), Token("shoe", "NOUN", "NN", "ROOT", 1)],
            "the Sunflower Hotel": [
                Token("the", "DET", "DT", "det", 2),
                Token("Sunflower", "PROPN", "NNP", "compound", 2),
                Token("Hotel", "PROPN", "NNP", "ROOT", 2),
            ],
            "a black cat chases a small bird": [
                Token("a", "DET", "DT", "det", 2),
                Token("black", "ADJ", "JJ", "amod", 2),
                Token("cat", "NOUN", "NN", "nsubj", 3),
                Token("chases", "VERB", "VBZ", "ROOT", 3),
                Token("a", "DET", "DT", "det", 6),
                Token("small", "ADJ", "JJ", "amod", 6),
                Token("bird", "NOUN", "NN", "obj", 3),
            ],
        }
        return [parsed[text] for text in texts]


METHOD = Method(
    function=complexity_action,
    unit="1 passes, 0 does not (setting value: complexity of what passes)",
    bounds=(0.0, math.inf),
    source="Radenovic et al. 2023 (DiHT) §3.1, Complexity and Action; no official code, formulas.md §6",
    blank_caption="empty_caption",
    summary="1 where the caption's parse has a relation of an object and an action, at least one each, else 0.",
    made_for=("short",),
    known_limits={"short": "captions of scenes seldom have a verb, so few clean ones pass"},
    example=Example(
        columns={"caption": ["red shoe", "a black cat chases a small bird", "the Sunflower Hotel"]},
        value=[0.0, 1.0, 0.0],  # no action; cat: black + subject = 2, chases; neither attribute nor action
        roles={"parser": _ExampleParser()},
    ),
)
