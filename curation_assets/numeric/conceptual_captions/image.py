"""The image filter: both sides large enough, not a strip."""

from curation_assets.numeric.conceptual_captions import Drop

MIN_SIDE_PX, MAX_ASPECT_RATIO = 400, 2.0  # both sides > 400 px, strictly; CC12M relaxes the ratio to 2.5


def check_image(
    width: int, height: int, *, min_side_px: int = MIN_SIDE_PX, max_aspect_ratio: float = MAX_ASPECT_RATIO
) -> Drop | None:
    """`image_too_small` where a side is not above `min_side_px`, `image_too_elongated` above `max_aspect_ratio`."""
    shorter, longer = sorted((width, height))
    if shorter <= min_side_px:
        return Drop("image_too_small", shorter)
    ratio = longer / shorter
    return Drop("image_too_elongated", ratio) if ratio > max_aspect_ratio else None
