"""CLIPScore as a metric: 2.5 · max(cosine, 0) with a prompt. Never compare it with `clip_score`, the plain cosine."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, ImageTextEncoder, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.clip_score import clip_cosine

SCALE = 2.5
PROMPT = "A photo depicts "


def clip_score_metric(
    image: Images, caption: Texts, image_text_encoder: ImageTextEncoder, prompt: str = PROMPT
) -> Values:
    """2.5 · max(cos(image, `prompt` + caption), 0), which judges captions; thresholds of curation do not belong to it.

    Hessel et al. 2021 §3 with ViT-B/32 (formulas.md §4). Details: cosine, before scale and clamp.
    """
    prompted = [prompt + text for text in caption]
    cosine = clip_cosine(image_text_encoder.embed_images(image), image_text_encoder.embed_texts(prompted))  # (N,)
    # The cosine of two float32 unit vectors may read 1.0000001: that is 1.
    return Values.of(SCALE * np.clip(cosine, 0.0, 1.0), cosine=cosine.tolist())


class _ExampleEncoder:
    """Unit vectors in the plane: an image points right; the prompt must be there."""

    def embed_images(self, images: Images) -> np.ndarray:
        return np.tile([1.0, 0.0], (len(images), 1))

    def embed_texts(self, texts: Texts) -> np.ndarray:
        vectors = {"right": (1.0, 0.0), "up": (0.0, 1.0), "both": (0.6, 0.8), "left": (-1.0, 0.0)}
        return np.array([vectors[text.partition(PROMPT)[2]] for text in texts])


METHOD = Method(
    function=clip_score_metric,
    unit="2.5 · cosine, negative cosines as 0",
    bounds=(0.0, 2.5),
    source="Hessel et al. 2021 §3, CLIPScore with the prompt 'A photo depicts'",
    summary="CLIPScore: 2.5 times the CLIP cosine of image and prompted caption, negative cosines as 0.",
    made_for=("mismatched",),
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1))] * 4, "caption": ["right", "up", "both", "left"]},
        value=[2.5, 0.0, 1.5, 0.0],  # cosines 1, 0, .6, −1
        roles={"image_text_encoder": _ExampleEncoder()},
    ),
)
