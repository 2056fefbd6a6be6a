"""Concrete and abstract captions with targets, for students to learn from."""

import numpy as np

THINGS = ["red kite", "wooden boat", "green house", "small dog", "blue mug", "yellow tree", "old tractor", "fish"]
PLACES = ["on the beach", "in the snow", "by the road", "on a table"]
IDEAS = ["justice", "strategic value", "loyalty", "innovation", "tradition", "freedom", "the future", "balance"]
VERBS = ["inspires everyone", "matters in theory", "defines an era", "requires reflection"]

CONCRETE = [f"a {thing} {place}" for thing in THINGS for place in PLACES]
ABSTRACT = [f"{idea} {verb}" for idea in IDEAS for verb in VERBS]
CAPTIONS = [text for pair in zip(CONCRETE, ABSTRACT, strict=True) for text in pair]  # 64, alternating
TARGETS = np.tile([0.9, 0.1], 32) + np.linspace(-0.05, 0.05, 64)
