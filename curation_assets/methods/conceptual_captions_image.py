"""Conceptual Captions, the image filter: is the image large enough, and not a strip?"""

from collections.abc import Sequence

import numpy as np

from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.conceptual_captions import Drop

MIN_SIDE_PX, MAX_ASPECT_RATIO = 400, 2.0  # both sides > 400 px, strictly; CC12M relaxes the ratio to 2.5


def check_image(width: int, height: int, min_side_px: int, max_aspect_ratio: float) -> Drop | None:
    """`image_too_small` where a side is not above `min_side_px`, `image_too_elongated` above `max_aspect_ratio`."""
    shorter, longer = sorted((width, height))
    if shorter <= min_side_px:
        return Drop("image_too_small", shorter)
    ratio = longer / shorter
    return Drop("image_too_elongated", ratio) if ratio > max_aspect_ratio else None


def conceptual_captions_image(
    original_width: Sequence[int],
    original_height: Sequence[int],
    min_side_px: int = MIN_SIDE_PX,
    max_aspect_ratio: float = MAX_ASPECT_RATIO,
) -> Values:
    """1 where both sides are above `min_side_px` and longer ÷ shorter is at most `max_aspect_ratio`, else 0.

    Sharma et al. 2018 §3, sizes of the image as it was found; formulas.md §7, stage 1. That it is a JPEG is not
    checked:
    downloaders write all images anew. CC12M: max_aspect_ratio 2.5. Details: rule, rule_value.
    """
    sizes = zip(original_width, original_height, strict=True)
    drops = [check_image(w, h, min_side_px, max_aspect_ratio) for w, h in sizes]
    return Values.of(
        np.array([float(drop is None) for drop in drops]),
        rule=[None if drop is None else drop.rule for drop in drops],
        rule_value=[None if drop is None else float(drop.value) for drop in drops],
    )


METHOD = Method(
    function=conceptual_captions_image,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="Conceptual Captions (Sharma et al. 2018) §3, image-based filtering; formulas.md §7, stage 1",
    summary="1 where the image passes the size and shape rules of Conceptual Captions, else 0.",
    made_for=("odd_size",),
    example=Example(
        columns={"original_width": [401, 400, 1000, 802], "original_height": [802, 900, 401, 401]},
        value=[1.0, 0.0, 0.0, 1.0],  # ratio 2; 400 px is not above 400; ratio 2.49; ratio 2
    ),
)
