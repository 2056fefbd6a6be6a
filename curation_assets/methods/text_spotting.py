"""Text spotting: does the image merely spell out its caption?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from curation_assets.core.roles import Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.text_masking import TextBox, is_confirmed, shared_words


def text_spotting(caption: Texts, text_boxes: Sequence[Sequence[Mapping[str, Any]]]) -> Values:
    """1 where no word read in the image stands in the caption, else 0. Radenovic et al. 2023 §3, formulas.md §5.

    Words of 5 letters or digits and more, read with a confidence of .8 and more, compared as whole words whatever the
    case. Details: shared_words, text_count (boxes with confirmed letters).
    """
    boxes = [list(map(TextBox.of, rows)) for rows in text_boxes]
    shared = [shared_words(text, spotted) for text, spotted in zip(caption, boxes, strict=True)]
    return Values.of(
        np.array([float(not words) for words in shared]),
        shared_words=[", ".join(words) for words in shared],
        text_count=[sum(map(is_confirmed, spotted)) for spotted in boxes],
    )


def _box(text: str, confidence: float = 0.9) -> dict[str, Any]:
    return {"text": text, "confidence": confidence, "polygon": [0.0, 0.0, 9.0, 0.0, 9.0, 9.0]}


METHOD = Method(
    function=text_spotting,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="Radenovic et al. 2023 (DiHT) §3; SIEVE (Mahmoud et al. 2024) appendix C.1; formulas.md §5",
    summary="1 where no word read in the image stands in the caption, else 0.",
    made_for=("text_only",),
    example=Example(
        columns={
            "caption": ["summer sale now", "summer sale now", "summer sale now", "midsummer night", "a red kite"],
            "text_boxes": [[_box("SUMMER")], [_box("Sale!")], [_box("SUMMER", 0.7)], [_box("summer")], []],
        },
        value=[0.0, 1.0, 1.0, 1.0, 1.0],  # read; four letters; not sure enough; another word; no text
    ),
)
