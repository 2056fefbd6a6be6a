"""Kind of image: photograph, screenshot, diagram, drawing, logo or document."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, KindClassifier
from curation_assets.methods import Example, Method, Values


def image_kind(image: Images, kind_classifier: KindClassifier) -> Values:
    """Probability that the image is a photograph. Details: kind, the likeliest one, and kind_probability."""
    probabilities = kind_classifier.kind_probabilities(image)  # (N, K)
    likeliest = probabilities.argmax(axis=1)
    return Values.of(
        probabilities[:, kind_classifier.kinds.index("photo")],
        kind=[kind_classifier.kinds[place] for place in likeliest],
        kind_probability=probabilities.max(axis=1).tolist(),
    )


class _ExampleClassifier:
    """The darker, the likelier a photograph; else a logo."""

    kinds = ("photo", "logo")

    def kind_probabilities(self, images: Images) -> np.ndarray:
        light = np.array([np.asarray(image)[0, 0, 0] / 255 for image in images])
        return np.stack([1 - light, light], axis=1)


METHOD = Method(
    function=image_kind,
    unit="probability that the image is a photograph",
    bounds=(0.0, 1.0),
    source="this project: a linear layer on frozen features; docs/models/image_kind.md",
    summary="Probability that the image is a photograph, and not a screenshot, diagram, drawing, logo or document.",
    no_planted_kind="every planted image is drawn",
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1), colour) for colour in ("black", (51, 0, 0), "red")]},
        value=[1.0, 0.8, 0.0],
        roles={"kind_classifier": _ExampleClassifier()},
    ),
)
