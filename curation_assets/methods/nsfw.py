"""Safe for work: probability of an image classifier of the operator's choice."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, SafetyClassifier
from curation_assets.methods import Example, Method, Values


def nsfw(image: Images, safety_classifier: SafetyClassifier) -> Values:
    """1 − the probability that the image is not safe for work, so that higher is better as everywhere.

    docs/operator/safety.md describes how to fill the role. Raises ValueError for probabilities outside
    [0, 1] or NaN.
    """
    unsafe = np.asarray(safety_classifier.unsafe_probabilities(image), dtype=np.float64)
    odd = unsafe[~((unsafe >= 0) & (unsafe <= 1))]
    if len(odd):
        raise ValueError(f"the safety_classifier must return probabilities in [0, 1], got {odd[0]}")
    return Values.of(1.0 - unsafe)


class _ExampleClassifier:
    """The redder, the less safe."""

    def unsafe_probabilities(self, images: Images) -> np.ndarray:
        return np.array([np.asarray(image)[0, 0, 0] / 255 for image in images])


METHOD = Method(
    function=nsfw,
    unit="probability that the image is safe for work",
    bounds=(0.0, 1.0),
    source="an image classifier named by the operator (role safety_classifier)",
    summary="Probability that the image is safe for work, by a classifier that the operator names.",
    no_planted_kind="no planted image is unsafe",
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1), colour) for colour in ("black", (51, 0, 0), "red")]},
        value=[1.0, 0.8, 0.0],
        roles={"safety_classifier": _ExampleClassifier()},
    ),
)
