"""Quality of an image by its pixels alone: blur, darkness, glare, information and shape.

Scores lie in [0, 1], higher is better; formulas.md §14.1 has the formulas and the thresholds that belong to them.
All but blur are CleanVision's.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageFilter

BLUR_SIDE_PX = 128  # longer side at which blur is measured, so that the size of the image matters little
BLUR_HALF_DEVIATION = 10.0  # grey levels: a variance of the Laplacian of 100, its usual threshold, scores .5
CLEANVISION_BLUR_SIDE_PX = 64
CLEANVISION_BLUR_SCALE = 100.0  # grey levels
CLEANVISION_MIN_FLAT_SCORE = 0.18  # below it the share of few grey levels does not count
BITS_AT_FULL_SCORE = 10.0  # just above log2(3 · 256), the most that an RGB histogram can hold
DARK_PERCENTILE, LIGHT_PERCENTILE = 99, 5
#: Thousandths of the squared channels in perceived brightness (HSP colour model).
BRIGHTNESS_THOUSANDTHS = (241, 691, 68)
KEPT_BRIGHTNESS = "_low_and_high_brightness"  # attribute of an image: (its pixels, both percentiles)
PIXELS_AT_ONCE = 1 << 16  # 2^16 × 2 × 4 B = .5 MiB beside the squares, whatever the size of the image


def laplacian_variance(image: Image.Image) -> float:
    """Variance of the Laplacian of an RGB image at 128 px, in squared grey levels; NaN for a side below 3 px.

    The longer side is brought to 128 px if it is longer, never enlarged. The Laplacian has four neighbours and is taken
    inside the frame.
    """
    grey = np.asarray(_at_side(image, BLUR_SIDE_PX).convert("L")).astype(np.int16)  # (H, W)
    if min(grey.shape) < 3:
        return float("nan")
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1]  # whole numbers in [-1020, 1020]
    laplacian += grey[1:-1, :-2]
    laplacian += grey[1:-1, 2:]
    laplacian -= 4 * grey[1:-1, 1:-1]
    return float(np.var(laplacian.astype(np.float64)))


def blur_score(variance: float) -> float:
    """`deviation / (deviation + 10)` of a variance of the Laplacian: 0 without an edge, .5 at a variance of 100."""
    deviation = np.sqrt(variance)
    return float(deviation / (deviation + BLUR_HALF_DEVIATION))


def cleanvision_blur(image: Image.Image) -> float:
    """CleanVision's blur score of an RGB image; it calls an image blurred below .29.

    `1 − exp(−deviation / 100)` of Pillow's FIND_EDGES at 64 px, plus the same of the standard deviation of the 256
    counts of grey levels where that is above .18: few grey levels, as drawings have them, raise it.
    """
    grey = _at_side(image, CLEANVISION_BLUR_SIDE_PX).convert("L")
    deviation = np.asarray(grey.filter(ImageFilter.FIND_EDGES), dtype=np.float64).std()
    flat = 1 - np.exp(-np.std(grey.histogram()) / CLEANVISION_BLUR_SCALE)
    score = 1 - np.exp(-deviation / CLEANVISION_BLUR_SCALE) + (flat if flat > CLEANVISION_MIN_FLAT_SCORE else 0.0)
    return min(1.0, float(score))


def _at_side(image: Image.Image, side_px: int) -> Image.Image:
    """The image with its longer side brought down to `side_px`, sides rounded down, at least 1."""
    ratio = max(image.size) / side_px
    if ratio <= 1:
        return image
    width, height = (max(1, int(side // ratio)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def dark_score(image: Image.Image) -> float:
    """99th percentile of the brightness of an RGB image: near 0 where hardly a pixel is bright."""
    return _low_and_high_brightness(image)[1]


def light_score(image: Image.Image) -> float:
    """1 − the 5th percentile of the brightness of an RGB image: near 0 where hardly a pixel is not white."""
    return 1 - _low_and_high_brightness(image)[0]


def _low_and_high_brightness(image: Image.Image) -> list[float]:
    """The 5th and the 99th percentile. A `readonly` image keeps them, so the second score costs nothing: what draws or
    pastes into such an image puts a copy in the place of its pixels `im`.
    """
    pixels, both = vars(image).get(KEPT_BRIGHTNESS, (None, []))
    if pixels is not image.im:
        both = brightness_percentiles(image, (LIGHT_PERCENTILE, DARK_PERCENTILE))
        if image.readonly:
            vars(image)[KEPT_BRIGHTNESS] = (image.im, both)
    return both


def brightness_percentiles(image: Image.Image, percentiles: Sequence[float]) -> list[float]:
    """Percentiles, in [0, 100], of the brightness of an RGB image: the bits of `np.percentile` of every pixel's
    √(.241 R² + .691 G² + .068 B²) / 255.

    Brightness rises with the weighted squares, so the two order statistics that matter are found among those, in whole
    numbers, and only they become brightness: a quarter of the time.
    """
    squares = _weighted_squares(np.asarray(image))  # (H · W,)
    return [_percentile(squares, percentile) for percentile in percentiles]


def _percentile(squares: np.ndarray, percentile: float) -> float:
    """A percentile of brightness of (N,) weighted squares, which it brings into another order."""
    position = percentile / 100 * (squares.size - 1)
    below = int(position)
    squares.partition(below)  # one position is found by vector instructions, two are not: four times as long
    above = squares[below + 1 :]
    ends = np.array([squares[below], above.min() if above.size else squares[below]])
    low, high = (np.sqrt(ends / 1000) / 255).tolist()  # brightness, in [0, 1]
    share = position - below
    # NumPy goes from the nearer end; from the other one the last bit may differ
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def _weighted_squares(pixels: np.ndarray) -> np.ndarray:
    """241 R² + 691 G² + 68 B² of each pixel, exact. (H, W, 3) uint8 → (H · W,) int32, at most 65,025,000."""
    flat = pixels.reshape(-1, 3)
    squares = np.zeros(len(flat), dtype=np.int32)
    for start in range(0, len(flat), PIXELS_AT_ONCE):
        part = flat[start : start + PIXELS_AT_ONCE]
        for channel, weight in enumerate(BRIGHTNESS_THOUSANDTHS):
            weighted = np.square(part[:, channel], dtype=np.int32)
            weighted *= weight
            squares[start : start + PIXELS_AT_ONCE] += weighted
    return squares


def entropy_score(image: Image.Image) -> float:
    """Entropy of an RGB image's 3 · 256 counts of values, in bits, over 10, at most 1: near 0 where colours are few.

    An image of one colour has log2(3) bits, one of two equally common colours that differ in every channel log2(6).
    """
    return min(1.0, image.entropy() / BITS_AT_FULL_SCORE)


def aspect_score(width: int, height: int) -> float:
    """Shorter side ÷ longer side, in (0, 1]; 1 is a square. Raises ValueError for a side below 1 px."""
    if min(width, height) < 1:
        raise ValueError(f"sides must be at least 1 px, got {width} × {height}")
    return min(width, height) / max(width, height)
