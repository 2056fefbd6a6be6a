"""CLIPScore of the flipped image: does the caption still fit the picture in a mirror and upside down?"""

import numpy as np
from PIL import Image, ImageOps

from curation_assets.core.roles import Images, ImageTextEncoder, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.clip_score import clip_cosine


def flipped_clip_score(image: Images, caption: Texts, image_text_encoder: ImageTextEncoder) -> Values:
    """The lower cosine of the caption with the mirrored image and with the image upside down. formulas.md §15.6.

    Details: mirrored, upside_down. EcoDatum lets both vote. Written words cannot be read in either, so a caption that
    an image quotes loses; so does what is known by its upright pose. Costs twice what clip_score does for images.
    """
    texts = image_text_encoder.embed_texts(caption)
    mirrored = clip_cosine(image_text_encoder.embed_images([ImageOps.mirror(one) for one in image]), texts)
    upside_down = clip_cosine(image_text_encoder.embed_images([ImageOps.flip(one) for one in image]), texts)
    return Values.of(np.minimum(mirrored, upside_down), mirrored=mirrored.tolist(), upside_down=upside_down.tolist())


class _ExampleEncoder:
    """An image vector points from the centre to the bright pixel; a text vector to the place that the text names."""

    def embed_images(self, images: Images) -> np.ndarray:
        corners = [np.unravel_index(np.asarray(one.convert("L")).argmax(), (3, 3)) for one in images]
        vectors = np.array([(column - 1.0, 1.0 - row) for row, column in corners])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_texts(self, texts: Texts) -> np.ndarray:
        vectors = {"up": (0.0, 1.0), "right": (1.0, 0.0), "up and right": (0.6, 0.8)}
        return np.array([vectors[text] for text in texts])


def _spot(x: int, y: int) -> Image.Image:
    image = Image.new("L", (3, 3))
    image.putpixel((x, y), 255)
    return image.convert("RGB")


METHOD = Method(
    function=flipped_clip_score,
    unit="cosine",
    bounds=(-1.0, 1.0),
    source="EcoDatum (Xu et al. 2025, arXiv 2502.08211), both flips as one; formulas.md §15.6",
    blank_caption="empty_caption",
    summary="The lower CLIP cosine of the caption with the mirrored image and with the image upside down.",
    made_for=("mismatched",),
    example=Example(
        columns={
            "image": [_spot(1, 0), _spot(2, 1), _spot(1, 0)],  # above, to the right, above
            "caption": ["up", "right", "up and right"],
        },
        value=[-1.0, -1.0, -0.8],  # upside down; in the mirror; upside down
        roles={"image_text_encoder": _ExampleEncoder()},
    ),
)
