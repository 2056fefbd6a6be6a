"""Aesthetics: how people would rate the looks of the image, by a head of the operator's choice."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import AestheticHead, Images
from curation_assets.methods import Example, Method, Values


def aesthetic(image: Images, aesthetic_head: AestheticHead) -> Values:
    """The head's score of each image, as it is: LAION's heads predict a mean rating of 1 to 10 and are not bounded.

    No head is shipped: formulas.md §14.3 describes how to convert a published one.
    """
    return Values.of(aesthetic_head.aesthetic_scores(image))


class _ExampleHead:
    """Likes light."""

    def aesthetic_scores(self, images: Images) -> np.ndarray:
        return np.array([1 + 9 * np.asarray(image).mean() / 255 for image in images])


METHOD = Method(
    function=aesthetic,
    unit="predicted mean rating, nominally 1 to 10",
    bounds=(float("-inf"), float("inf")),
    source="LAION aesthetics (Schuhmann et al. 2022), head named by the operator; formulas.md §14.3",
    summary="People's mean rating of the looks of the image, predicted from its CLIP embedding.",
    no_planted_kind="no planted image is better looking than another, and no head is shipped",
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1), colour) for colour in ("black", (85, 85, 85), "white")]},
        value=[1.0, 4.0, 10.0],
        roles={"aesthetic_head": _ExampleHead()},
    ),
)
