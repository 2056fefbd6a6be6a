"""What goes wrong with photographs on the web, done to a good one: dark, blurred, tiny, a strip, a changed copy."""

import numpy as np
from PIL import Image, ImageFilter

Rng = np.random.Generator

DARK_LEVEL = (4.0, 12.0)  # mean luminance of a dark image, of 255
BLUR_SHARE = (0.03, 0.05)  # Gaussian radius, of the longer side
TINY_PX = (12, 40)  # longer side of a tiny image
STRIP_RATIO = (4.0, 6.0)  # longer ÷ shorter side of a strip
COPY_SCALE = (0.6, 0.9)  # sides of a resized copy
COPY_CROP = (0.01, 0.03)  # cut off on each side of a cropped copy
COPY_QUALITY = (40, 75)  # JPEG quality of a copy


def luminance(image: Image.Image) -> float:
    """Mean luminance in [0, 255] (ITU-R 601-2)."""
    return float(np.asarray(image.convert("L"), dtype=np.float64).mean())


def darkened(image: Image.Image, rng: Rng) -> tuple[Image.Image, str]:
    """All channels scaled to a mean luminance in DARK_LEVEL; an image that is darker already stays as it is."""
    target = float(rng.uniform(*DARK_LEVEL))
    factor = min(1.0, target / max(luminance(image), 1e-9))
    pixels = np.asarray(image.convert("RGB"), dtype=np.float64) * factor  # (H, W, 3)
    return Image.fromarray(np.round(pixels).astype(np.uint8)), f"luminance {target:.1f}"


def blurred(image: Image.Image, rng: Rng) -> tuple[Image.Image, str]:
    """Out of focus: a Gaussian whose radius is a share of the longer side."""
    radius_px = float(rng.uniform(*BLUR_SHARE)) * max(image.size)
    return image.convert("RGB").filter(ImageFilter.GaussianBlur(radius_px)), f"radius {radius_px:.1f} px"


def odd_sized(image: Image.Image, rng: Rng) -> tuple[Image.Image, str]:
    """Two of three tiny, one of three a strip."""
    return tiny(image, rng) if rng.random() < 2 / 3 else strip(image, rng)


def tiny(image: Image.Image, rng: Rng) -> tuple[Image.Image, str]:
    """All of the image, its longer side in TINY_PX; a smaller one stays as it is."""
    longer = min(int(rng.integers(TINY_PX[0], TINY_PX[1] + 1)), max(image.size))
    scale = longer / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS), f"tiny {width} x {height}"


def strip(image: Image.Image, rng: Rng) -> tuple[Image.Image, str]:
    """A band right across the image, level or upright; longer ÷ shorter side in STRIP_RATIO."""
    width, height = image.size
    ratio = float(rng.uniform(*STRIP_RATIO))
    if rng.random() < 0.5:
        band = max(1, min(height, int(width / ratio)))
        top = int(rng.integers(height - band + 1))
        box = (0, top, width, top + band)
    else:
        band = max(1, min(width, int(height / ratio)))
        left = int(rng.integers(width - band + 1))
        box = (left, 0, left + band, height)
    return image.convert("RGB").crop(box), f"strip {box[2] - box[0]} x {box[3] - box[1]}"


def copied(image: Image.Image, rng: Rng) -> tuple[Image.Image, str, int]:
    """(the image re-encoded, resized or cropped, which of them, JPEG quality to write it with)."""
    how = ("re-encoded", "resized", "cropped")[int(rng.integers(3))]
    quality = int(rng.integers(COPY_QUALITY[0], COPY_QUALITY[1] + 1))
    copy = image.convert("RGB")
    width, height = copy.size
    if how == "resized":
        scale = float(rng.uniform(*COPY_SCALE))
        copy = copy.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BICUBIC)
    elif how == "cropped":
        share = float(rng.uniform(*COPY_CROP))
        across, down = int(width * share), int(height * share)
        copy = copy.crop((across, down, width - across, height - down))
    return copy, how, quality
