"""T-MARS: does the caption still describe the image once the text in it is painted over? CLIP cosine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, ImageTextEncoder, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.clip_score import METHOD as CLIP_SCORE
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.numeric.text_masking import Fill, TextBox, box_pixels, is_confirmed, paint_over


def tmars(
    image: Images,
    caption: Texts,
    text_boxes: Sequence[Sequence[Mapping[str, Any]]],
    image_text_encoder: ImageTextEncoder,
    fill: Fill = "ring_mean",
    min_confidence: float = 0.5,
    min_letters: int = 2,
) -> Values:
    """Cosine of the caption, as it is, and the image with its text painted over. Maini et al. 2023 §4, formulas.md §5.

    A box counts once `min_letters` letters or digits were read in it with `min_confidence`. Images without such a box
    keep their CLIPScore. Details: text_count (boxes that count), masked_share (of the pixels).
    """
    masked, counts, shares = [], [], []
    for picture, rows in zip(image, text_boxes, strict=True):
        boxes = [box for box in map(TextBox.of, rows) if is_confirmed(box, min_confidence, min_letters)]
        polygons = [box.polygon for box in boxes]
        counts.append(len(boxes))
        if not boxes:
            masked.append(picture)
            shares.append(0.0)
            continue
        pixels = np.asarray(picture.convert("RGB"))  # (H, W, 3)
        masked.append(Image.fromarray(paint_over(pixels, polygons, fill)))
        covered = np.logical_or.reduce([box_pixels(pixels.shape[:2], polygon) for polygon in polygons])
        shares.append(float(covered.mean()))
    cosines = clip_cosine(image_text_encoder.embed_images(masked), image_text_encoder.embed_texts(caption))  # (N,)
    return Values.of(cosines, text_count=counts, masked_share=shares)


class _ExampleEncoder:
    """An image points right, or up where its first pixel is black (text); texts as in CLIPScore's example."""

    def embed_images(self, images: Images) -> np.ndarray:
        return np.array([[0.0, 1.0] if image.getpixel((0, 0)) == (0, 0, 0) else [1.0, 0.0] for image in images])

    def embed_texts(self, texts: Texts) -> np.ndarray:
        return CLIP_SCORE.example.roles["image_text_encoder"].embed_texts(texts)


_BLACK_CORNER = Image.new("RGB", (8, 8), "white")
_BLACK_CORNER.paste((0, 0, 0), (0, 0, 3, 3))
_BOX = [0.0, 0.0, 2.0, 0.0, 2.0, 2.0, 0.0, 2.0]

METHOD = Method(
    function=tmars,
    unit="cosine",
    bounds=(-1.0, 1.0),
    source="T-MARS (Maini et al. 2023) §4; fill modes of formulas.md §5",
    summary="Cosine of CLIP's text embedding and the embedding of the image with its text painted over.",
    made_for=("mismatched", "text_only"),
    example=Example(
        columns={
            "image": [_BLACK_CORNER] * 4,
            "caption": ["up", "up", "right", "right"],
            "text_boxes": [
                [],
                [{"text": "UP", "confidence": 0.9, "polygon": _BOX}],
                [{"text": "UP", "confidence": 0.9, "polygon": _BOX}],
                [{"text": "|", "confidence": 0.9, "polygon": _BOX}],
            ],
        },
        value=[1.0, 0.0, 1.0, 0.0],  # no text; the text was all that agreed; it hid the rest; no letter, no text
        roles={"image_text_encoder": _ExampleEncoder()},
    ),
)
