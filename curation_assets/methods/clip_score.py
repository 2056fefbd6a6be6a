"""CLIPScore for curation: the plain cosine of an image and its caption."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, ImageTextEncoder, Texts
from curation_assets.methods import Example, Method, Values


def clip_cosine(image_embeddings: np.ndarray, caption_embeddings: np.ndarray) -> np.ndarray:
    """Row-wise cosine of unit vectors. (N, D), (N, D) → (N,) in [-1, 1]. Hessel et al. 2021 §3, unscaled."""
    return np.einsum("nd,nd->n", image_embeddings, caption_embeddings, dtype=np.float64)  # (N,)


def clip_score(image: Images, caption: Texts, image_text_encoder: ImageTextEncoder) -> Values:
    """No prompt, no clamp, no factor 2.5: thresholds such as .28 and .30 belong to this scale (formulas.md §4)."""
    return Values.of(clip_cosine(image_text_encoder.embed_images(image), image_text_encoder.embed_texts(caption)))


class _ExampleEncoder:
    """Unit vectors in the plane: an image 'points' right; 'right' agrees with it, 'up' is orthogonal."""

    def embed_images(self, images: Images) -> np.ndarray:
        return np.tile([1.0, 0.0], (len(images), 1))

    def embed_texts(self, texts: Texts) -> np.ndarray:
        vectors = {"right": (1.0, 0.0), "up": (0.0, 1.0), "both": (0.6, 0.8)}
        return np.array([vectors[text] for text in texts])


METHOD = Method(
    function=clip_score,
    unit="cosine",
    bounds=(-1.0, 1.0),
    source="Hessel et al. 2021 §3 without the factor 2.5; DataComp (Gadre et al. 2023) §3.2",
    summary="Cosine of CLIP's image and text embeddings.",
    made_for=("mismatched",),
    default=True,
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1))] * 3, "caption": ["right", "up", "both"]},
        value=[1.0, 0.0, 0.6],
        roles={"image_text_encoder": _ExampleEncoder()},
    ),
)
