"""HYPE's text specificity: does a caption fit few images, or nearly all of them?"""

import numpy as np

from curation_assets.core.roles import HyperbolicTextEncoder, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.hyperbolic import text_specificity as mean_entailment


def text_specificity(caption: Texts, hyperbolic_text_encoder: HyperbolicTextEncoder) -> Values:
    """ε_t: mean angle of the encoder's reference images outside the caption's entailment cone.

    Kim et al. 2024 (arXiv 2404.17507) §3; formulas.md §15.12. Reads the caption alone, as ICC does.
    """
    encoder = hyperbolic_text_encoder
    if not len(caption):
        return Values.of(np.zeros(0))
    return Values.of(mean_entailment(encoder.embed_texts(caption), encoder.reference_images, encoder.curvature))


class _ExampleEncoder:
    """Captions and two images on one line through the origin."""

    curvature = 1.0
    reference_images = np.array([[2.0, 0.0], [-2.0, 0.0]], dtype=np.float32)

    def embed_texts(self, texts: Texts) -> np.ndarray:
        return np.array([{"a red kite": (1.0, 0.0), "stuff": (0.1, 0.0)}[text] for text in texts])


METHOD = Method(
    function=text_specificity,
    unit="radians",
    bounds=(-float(np.pi) / 2, float(np.pi)),
    source="HYPE (Kim et al. 2024, arXiv 2404.17507) §3, ε_t; formulas.md §15.12",
    blank_caption="empty_caption",
    summary="Mean angle of reference images outside the caption's entailment cone, by a hyperbolic CLIP.",
    no_planted_kind="no hyperbolic CLIP is shipped",
    example=Example(
        columns={"caption": ["a red kite", "stuff"]},
        # one image ahead (0), one behind (π): π/2 less the half aperture, asin(.2 / sinh 1) and, near the origin, π/2
        value=[float(np.pi / 2 - np.arcsin(0.2 / np.sinh(1.0))), 0.0],
        roles={"hyperbolic_text_encoder": _ExampleEncoder()},
    ),
)
