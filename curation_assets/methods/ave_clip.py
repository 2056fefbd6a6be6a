"""aveCLIP: do pictures that a model draws of a caption look like it?"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, ImageTextEncoder, Texts, TextToImage
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.numeric.identity import seed_of

IMAGES = 5  # the number of the original is not published (formulas.md §1.9)


def ave_clip(
    caption: Texts,
    sample_id: Sequence[str],
    text_to_image: TextToImage,
    image_text_encoder: ImageTextEncoder,
    images: int = IMAGES,
) -> Values:
    """Mean CLIP cosine of a caption with `images` pictures drawn from it. Wu & Smith 2023; formulas.md §1.9.

    Seeds come from the sample_id, so a value depends on no neighbour. Detail: cosines, one per picture.
    Raises ValueError for images < 1.
    """
    if images < 1:
        raise ValueError(f"images must be at least 1, got {images}")
    repeated = [text for text in caption for _ in range(images)]
    seeds = [seed_of(sample, f"ave_clip-{k}") for sample in sample_id for k in range(images)]
    drawn = image_text_encoder.embed_images(text_to_image.generate_images(repeated, seeds))  # (N * K, D)
    texts = np.repeat(image_text_encoder.embed_texts(caption), images, axis=0)  # (N * K, D)
    cosines = clip_cosine(drawn, texts).reshape(len(caption), images)
    return Values.of(cosines.mean(axis=1), cosines=cosines.tolist())


class _ExamplePainter:
    """Paints 'red' red, and 'hope' at random: red or black by its seed."""

    def generate_images(self, captions: Texts, seeds: Sequence[int]) -> list[Image.Image]:
        is_red = [text == "red" or seed % 2 == 0 for text, seed in zip(captions, seeds, strict=True)]
        return [Image.new("RGB", (1, 1), "red" if red else "black") for red in is_red]


class _ExampleEncoder:
    """Every text and every red picture point right, a black picture up."""

    def embed_images(self, images: Images) -> np.ndarray:
        return np.array([(1.0, 0.0) if image.getpixel((0, 0)) == (255, 0, 0) else (0.0, 1.0) for image in images])

    def embed_texts(self, texts: Texts) -> np.ndarray:
        return np.tile([1.0, 0.0], (len(texts), 1))


METHOD = Method(
    function=ave_clip,
    unit="cosine",
    bounds=(-1.0, 1.0),
    source="Wu & Smith 2023, aveCLIP; baseline of the ICC paper §5.1",
    blank_caption="empty_caption",
    summary="Mean CLIP cosine of the caption with five pictures that a text-to-image model draws from it.",
    made_for=("abstract",),
    example=Example(
        columns={"caption": ["red", "hope"], "sample_id": [f"{i:032x}" for i in range(2)]},
        value=[1.0, 0.2],  # of the five pictures of hope that these seeds give, one is red
        roles={"text_to_image": _ExamplePainter(), "image_text_encoder": _ExampleEncoder()},
    ),
)
