"""Small JPEGs of a pool's images: for the report, the compare page and the viewer."""

import io

from PIL import Image


def jpeg_thumbnail(image: Image.Image, longer_side: int, quality: int = 82) -> bytes:
    """JPEG of an image, longer side at most `longer_side` pixels; a smaller image keeps its size."""
    small = image.copy()
    small.thumbnail((longer_side, longer_side))
    buffer = io.BytesIO()
    small.convert("RGB").save(buffer, format="JPEG", quality=quality)
    return buffer.getvalue()
