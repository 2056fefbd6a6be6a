"""Blur: are there edges in the image?"""

from typing import Literal, get_args

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.image_quality import blur_score, cleanvision_blur, laplacian_variance

Definition = Literal["laplacian", "cleanvision"]


def image_blur(image: Images, definition: Definition = "laplacian") -> Values:
    """`d / (d + 10)`, d the standard deviation of the Laplacian in grey levels; .5 is a variance of 100.

    formulas.md §14.1. Measured with the longer side at 128 px, so that blur counts by its share of the image. A
    side below 3 px there: reason `too_small`. Detail: laplacian_variance. `definition="cleanvision"` gives
    CleanVision's score, to which its threshold .29 belongs. Raises ValueError for another definition.
    """
    if definition not in get_args(Definition):
        raise ValueError(f"definition must be one of {', '.join(get_args(Definition))}, got {definition!r}")
    variances = [laplacian_variance(one) for one in image]
    reason: list[str | None] = ["too_small" if np.isnan(variance) else None for variance in variances]
    scores = []
    for one, variance in zip(image, variances, strict=True):
        if definition == "cleanvision" and not np.isnan(variance):
            scores.append(cleanvision_blur(one))
        else:
            scores.append(blur_score(variance))
    details = [None if why else variance for variance, why in zip(variances, reason, strict=True)]
    return Values(np.array(scores, dtype=np.float64), reason, {"laplacian_variance": details})


def _stripes(level: int) -> Image.Image:
    """10 × 10, black columns and columns of a grey level in turn."""
    return Image.fromarray(np.tile(np.array([[0, level]], dtype=np.uint8), (10, 5))).convert("RGB")


METHOD = Method(
    function=image_blur,
    unit="d / (d + 10), d the deviation of the Laplacian in grey levels",
    bounds=(0.0, 1.0),
    source="variance of the Laplacian (Pech-Pacheco et al. 2000); formulas.md §14.1",
    summary="Strength of the edges of the image at 128 px, low where it is blurred.",
    made_for=("blurred",),
    example=Example(
        columns={"image": [_stripes(0), _stripes(5), _stripes(45)]},
        value=[0.0, 0.5, 0.9],  # the Laplacian is 2 · level and −2 · level in turn: its deviation is 2 · level
    ),
)
