"""Small JPEGs of a pool's images: for the report, the compare page and the viewer."""

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from curation_assets.core.errors import StoreError
from curation_assets.stores.images import ImageRejected

Row = Mapping[str, Any]


def jpeg_thumbnail(image: Image.Image, longer_side: int, quality: int = 82) -> bytes:
    """JPEG of an image, longer side at most `longer_side` pixels; a smaller image keeps its size. No metadata."""
    small = image.copy()
    small.thumbnail((longer_side, longer_side))
    buffer = io.BytesIO()
    small.convert("RGB").save(buffer, format="JPEG", quality=quality, comment=b"")  # Pillow keeps the comment else
    return buffer.getvalue()


def thumbnail_of(
    load: Callable[[Row], Image.Image], row: Row, longer_side: int, quality: int = 82
) -> tuple[bytes | None, str]:
    """The small JPEG of a row's image; None with the reason where it cannot be read."""
    try:
        return jpeg_thumbnail(load(row), longer_side, quality), ""
    except ImageRejected as rejected:
        return None, rejected.reason
    except (FileNotFoundError, StoreError):  # the owner's tar; `curate run` names shards that the source lacks
        return None, "its tar is missing or has changed"


def thumbnail_uri(load: Callable[[Row], Image.Image], row: Row, longer_side: int) -> tuple[str | None, str]:
    """`thumbnail_of` as `data:image/jpeg;base64,…`."""
    data, why = thumbnail_of(load, row, longer_side)
    return None if data is None else f"data:image/jpeg;base64,{base64.b64encode(data).decode()}", why
