"""Downloaded images as they are stored: scaled down by the calls of OpenCV that img2dataset makes, byte for byte."""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np

from curation_assets.stores.images import ImageLimits, ImageRejected, check_image, decode_image

_DECODING = threading.Lock()  # standard error is the process's: a second thread would put back nowhere


def guarded_resizer(image_size_px: int, encode_quality: int, limits: ImageLimits) -> Callable[[bytes], tuple[Any, ...]]:
    """Bytes of an image → bytes of a JPEG, width, height, original width and height, and an error or None.

    Images are checked first; what OpenCV decodes otherwise than we do is given to it as upright PNG of 8 bits.
    """

    def checked(data: bytes) -> tuple[Any, ...]:
        try:
            if not check_image(data, limits).is_plain:
                stream = io.BytesIO()
                decode_image(data, limits).save(stream, "PNG", compress_level=1)
                data = stream.getvalue()
            with _DECODING, _without_standard_error():
                return *_resized(data, image_size_px, encode_quality), None
        except (ImageRejected, ValueError, cv2.error) as error:
            return None, None, None, None, None, str(error)

    return checked


def _resized(data: bytes, size: int, quality: int) -> tuple[bytes, int, int, int, int]:
    """At most `size` pixels on the longer side, transparency on white; a JPEG that fits keeps its bytes."""
    cv2.setNumThreads(1)
    image: np.ndarray | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise ValueError("Image decoding error")
    is_jpeg = data[6:10] in (b"JFIF", b"Exif") or data.startswith(b"\xff\xd8\xff\xdb")
    has_alpha = image.ndim == 3 and image.shape[2] == 4
    if has_alpha:
        alpha = image[:, :, 3:]
        image = np.rint(alpha / 255 * image[..., :3] + 255 - alpha).clip(0, 255).astype(np.uint8)
    height, width = image.shape[:2]
    scale = size / max(height, width)
    if scale < 1:
        scaled = max(1, round(width * scale)), max(1, round(height * scale))
        image = cv2.resize(image, scaled, interpolation=cv2.INTER_AREA)
    if scale < 1 or has_alpha or not is_jpeg:
        data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
    return data, image.shape[1], image.shape[0], width, height


@contextlib.contextmanager
def _without_standard_error() -> Iterator[None]:
    """Sends standard error of the whole process to nowhere: libjpeg and libpng print warnings there."""
    with open(os.devnull, "wb") as nowhere:
        before = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
