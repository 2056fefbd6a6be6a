"""Downloaded images are the bytes that img2dataset would store."""

import io

import numpy as np
import pytest
from PIL import Image

from curation_assets.sources.download.resizing import guarded_resizer
from curation_assets.stores.images import DEFAULT_LIMITS
from tests.support.tars import encoded


def image_of(mode: str, width: int, height: int, form: str) -> bytes:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).convert(mode), form)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "form"), [("RGB", "JPEG"), ("L", "JPEG"), ("RGB", "WEBP"), ("RGBA", "PNG")])
def test_images_are_stored_as_img2dataset_stores_them(mode: str, form: str) -> None:
    """Scaled down or not, with transparency, rounded sides, one pixel wide."""
    from img2dataset.resizer import Resizer  # loads its command line

    theirs = Resizer(
        image_size=64,
        resize_mode="keep_ratio_largest",
        resize_only_if_bigger=True,
        encode_quality=95,
        encode_format="jpg",
        skip_reencode=True,
    )
    ours = guarded_resizer(64, 95, DEFAULT_LIMITS)
    for width, height in [(200, 300), (301, 201), (64, 64), (65, 3), (1, 129), (40, 30)]:
        data = image_of(mode, width, height, form)
        stored = ours(data)
        assert stored[3:] == (width, height, None)
        assert stored == tuple(theirs(io.BytesIO(data)))


def test_what_cannot_be_decoded_is_a_message() -> None:
    data = image_of("RGB", 200, 300, "JPEG")
    resized = guarded_resizer(64, 95, DEFAULT_LIMITS)
    assert resized(b"no image")[5].startswith("image_rejected:undecodable: 8 bytes")
    assert resized(data)[1:] == (43, 64, 200, 300, None)
