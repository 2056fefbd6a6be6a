"""Small JPEGs of a pool's images: for the report, the compare page and the viewer."""

import base64
import io

from PIL import Image


def jpeg_thumbnail(image: Image.Image, longer_side: int, quality: int = 82) -> bytes:
    """JPEG of an image, longer side at most `longer_side` pixels; a smaller image keeps its size. No metadata."""
    small = image.copy()
    small.thumbnail((longer_side, longer_side))
    buffer = io.BytesIO()
    small.convert("RGB").save(buffer, format="JPEG", quality=quality, comment=b"")  # Pillow keeps the comment else
    return buffer.getvalue()


def jpeg_uri(image: Image.Image, longer_side: int) -> str:
    """The small JPEG of an image as `data:image/jpeg;base64,…`."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg_thumbnail(image, longer_side)).decode()
