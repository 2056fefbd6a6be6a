"""Text in images: which boxes hold text, which of its words the caption has, and painting over it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image, ImageDraw

Fill = Literal["ring_mean", "box_mean", "image_mean"]
RING_SHARE, MIN_RING_PX = 0.1, 2  # width of the ring: share of the box's longer side, at least so many pixels
MIN_SPOTTED_CHARACTERS, MIN_SPOTTED_CONFIDENCE = 5, 0.8  # of a word that the text-spotting filter counts
WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class TextBox:
    """One box that a text spotter found."""

    text: str  # as recognised; "" where no letter was
    confidence: float  # of the recognition, [0, 1]
    polygon: tuple[float, ...]  # x0, y0, x1, y1, … in pixels of the image, at least three corners

    @classmethod
    def of(cls, row: "Mapping[str, Any] | TextBox") -> "TextBox":
        """The box of a stored row with these fields. Raises ValueError for a polygon below 3 corners."""
        if isinstance(row, TextBox):
            return row
        polygon = tuple(float(number) for number in row["polygon"])
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a text box needs x and y of three corners or more, got polygon {polygon}")
        return cls(row["text"] or "", float(row["confidence"]), polygon)


def is_confirmed(box: TextBox, min_confidence: float = 0.5, min_letters: int = 2) -> bool:
    """Whether letters or digits were read in the box. Both limits are inclusive.

    Detectors also box windows and wheels: without this, 29 % of clean scenes would be painted on.
    """
    letters = sum(character.isalnum() for character in box.text)
    return letters >= min_letters and box.confidence >= min_confidence


def shared_words(caption: str, boxes: Sequence[TextBox]) -> list[str]:
    """Recognised words that also stand in the caption, in order, each once. Radenovic et al. 2023; formulas.md §5.

    A word counts if it has at least 5 letters or digits and a confidence of at least .8. It is
    compared as a whole, in case-folded form.
    """
    in_caption = {word.casefold() for word in WORD.findall(caption)}
    recognised: list[str] = []
    for box in boxes:
        if box.confidence >= MIN_SPOTTED_CONFIDENCE:
            recognised += [word.casefold() for word in WORD.findall(box.text) if len(word) >= MIN_SPOTTED_CHARACTERS]
    return [word for word in dict.fromkeys(recognised) if word in in_caption]


def box_pixels(shape: tuple[int, int], polygon: Sequence[float]) -> np.ndarray:
    """(H, W) bool: pixels of a polygon, its outline included; corners beyond the image are cut off."""
    canvas = Image.new("1", (shape[1], shape[0]))
    ImageDraw.Draw(canvas).polygon([round(number) for number in polygon], fill=1, outline=1)
    return np.array(canvas, dtype=bool)


def paint_over(pixels: np.ndarray, polygons: Sequence[Sequence[float]], fill: Fill = "ring_mean") -> np.ndarray:
    """(H, W, 3) uint8 with every polygon filled by one colour. The input stays as it is.

    ring_mean: mean of a ring around the box (a tenth of its longer side, at least 2 px) outside all boxes, or the mean
    of the image outside all boxes where that ring is empty. box_mean: mean of the box itself, one box after the other
    on the painted image (Fondant). image_mean: mean of the whole image. formulas.md §5. A polygon outside the image
    changes nothing. Raises ValueError for another `fill` or shape.
    """
    if fill not in get_args(Fill):
        raise ValueError(f"fill must be one of {', '.join(get_args(Fill))}, got {fill!r}")
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"expected an RGB image (H, W, 3), got {pixels.shape}")
    shape = pixels.shape[:2]
    masks = [box_pixels(shape, polygon) for polygon in polygons]
    masks = [mask for mask in masks if mask.any()]
    painted = pixels.copy()
    if not masks:
        return painted
    outside = ~np.logical_or.reduce(masks)  # (H, W)
    whole = pixels.reshape(-1, 3).mean(axis=0)
    around = _mean(pixels, outside, whole)
    for mask in masks:
        if fill == "ring_mean":
            colour = _mean(pixels, _ring(mask) & outside, around)
        elif fill == "box_mean":
            colour = painted[mask].mean(axis=0)
        else:
            colour = whole
        painted[mask] = np.round(colour).astype(np.uint8)
    return painted


def _mean(pixels: np.ndarray, mask: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """(3,) mean colour of the pixels in the mask; `otherwise` for an empty mask."""
    return pixels[mask].mean(axis=0) if mask.any() else otherwise


def _ring(mask: np.ndarray) -> np.ndarray:
    """(H, W) bool: the bounding rectangle of a mask, widened by the ring, without the mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1], columns[0], columns[-1]
    width = max(MIN_RING_PX, round(RING_SHARE * max(bottom - top + 1, right - left + 1)))
    ring = np.zeros_like(mask)
    ring[max(0, top - width) : bottom + width + 1, max(0, left - width) : right + width + 1] = True
    return ring & ~mask
