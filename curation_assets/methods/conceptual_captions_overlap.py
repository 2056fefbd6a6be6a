"""Conceptual Captions, image and text together: does the caption name something that the image shows?"""

from collections.abc import Sequence

import numpy as np

from curation_assets.core.roles import Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.conceptual_captions.overlap import overlapping_words


def conceptual_captions_overlap(caption: Texts, detected_objects: Sequence[Sequence[str]]) -> Values:
    """How many words of the caption name a label of the image; the paper keeps 1 or more. formulas.md §7, stage 3.

    Details: words (those that overlap).
    """
    shared_words = [overlapping_words(text, labels) for text, labels in zip(caption, detected_objects, strict=True)]
    return Values.of(np.array([len(words) for words in shared_words]), words=shared_words)


METHOD = Method(
    function=conceptual_captions_overlap,
    unit="words",
    bounds=(0.0, float("inf")),
    source="Conceptual Captions (Sharma et al. 2018) §3, image and text-based filtering; formulas.md §7, stage 3",
    blank_caption="empty_caption",
    summary="Number of the caption's words that name a detected object.",
    made_for=("mismatched", "abstract"),
    example=Example(
        columns={
            "caption": ["two red kites over a beach", "a moment to remember", "Kite"],
            "detected_objects": [["kite", "sandy beach"], ["kite"], ["kite"]],
        },
        value=[2.0, 0.0, 1.0],
    ),
)
