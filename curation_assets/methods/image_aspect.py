"""Shape: is the image a strip?"""

from collections.abc import Sequence

import numpy as np

from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.image_quality import aspect_score


def image_aspect(original_width: Sequence[int], original_height: Sequence[int]) -> Values:
    """Shorter ÷ longer side of the image as it was before any resizing; CleanVision calls it odd below .35, EcoDatum
    below .33.

    formulas.md §14.1. How large the image is does not count: `datacomp_basic` has a smallest side.
    """
    sizes = zip(original_width, original_height, strict=True)
    return Values.of(np.array([aspect_score(width, height) for width, height in sizes]))


METHOD = Method(
    function=image_aspect,
    unit="shorter ÷ longer side",
    bounds=(0.0, 1.0),
    source="CleanVision 0.3.7 (Cleanlab), issue odd_aspect_ratio; formulas.md §14.1",
    summary="Shorter side of the image over its longer side, low for a strip.",
    made_for=("odd_size",),
    example=Example(
        columns={"original_width": [640, 480, 1000], "original_height": [640, 640, 250]}, value=[1.0, 0.75, 0.25]
    ),
)
