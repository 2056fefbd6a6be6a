"""Dark images: is any part of the image bright?"""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.image_quality import dark_score


def image_dark(image: Images) -> Values:
    """99th percentile of the pixels' perceived brightness; below .32 CleanVision calls an image dark.

    formulas.md §14.1. Every pixel counts, whatever the size of the image.
    """
    return Values.of(np.array([dark_score(one) for one in image]))


METHOD = Method(
    function=image_dark,
    unit="perceived brightness of the 99th percentile",
    bounds=(0.0, 1.0),
    source="CleanVision 0.3.7 (Cleanlab), issue dark; formulas.md §14.1",
    summary="Brightness of the brightest hundredth of the image, low where it is underexposed.",
    made_for=("dark",),
    example=Example(
        columns={"image": [Image.new("RGB", (8, 8), (level,) * 3) for level in (0, 51, 255)]},
        value=[0.0, 0.2, 1.0],  # level ÷ 255 of a grey pixel
    ),
)
