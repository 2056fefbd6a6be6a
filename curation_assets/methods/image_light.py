"""Light images: is any part of the image dark?"""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.image_quality import light_score


def image_light(image: Images) -> Values:
    """1 − the 5th percentile of the pixels' perceived brightness; below .05 CleanVision calls an image light.

    formulas.md §14.1. A product on white paper has dark pixels and passes; a washed-out image does not.
    """
    return Values.of(np.array([light_score(one) for one in image]))


METHOD = Method(
    function=image_light,
    unit="1 − perceived brightness of the 5th percentile",
    bounds=(0.0, 1.0),
    source="CleanVision 0.3.7 (Cleanlab), issue light; formulas.md §14.1",
    summary="One minus the brightness of the darkest twentieth of the image, low where it is overexposed.",
    no_planted_kind="no planted image is overexposed",
    example=Example(
        columns={"image": [Image.new("RGB", (8, 8), (level,) * 3) for level in (255, 204, 0)]},
        value=[0.0, 0.2, 1.0],  # 1 − level ÷ 255 of a grey pixel
    ),
)
