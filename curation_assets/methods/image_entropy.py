"""Information: how many colours does the image have?"""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.image_quality import entropy_score


def image_entropy(image: Images) -> Values:
    """Entropy of the counts of the 3 · 256 channel values, in bits, over 10; below .30 CleanVision calls it low.

    formulas.md §14.1. Blank images, plain placeholders and bare text are low.
    """
    return Values.of(np.array([entropy_score(one) for one in image]))


def _halves() -> Image.Image:
    """Black and white, half the pixels each."""
    image = Image.new("RGB", (8, 8), "black")
    image.paste("white", (0, 0, 8, 4))
    return image


METHOD = Method(
    function=image_entropy,
    unit="entropy of the channel values in bits, over 10",
    bounds=(0.0, 1.0),
    source="CleanVision 0.3.7 (Cleanlab), issue low_information; formulas.md §14.1",
    summary="Entropy of the channel values of the image, low where it has few colours.",
    made_for=("text_only",),
    example=Example(
        columns={"image": [Image.new("RGB", (8, 8), "teal"), _halves()]},
        value=[0.1584963, 0.2584963],  # log2(3) and log2(6) bits: each of three channels has one value, or two
    ),
)
