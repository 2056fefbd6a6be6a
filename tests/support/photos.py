"""Photographs of the shared data, for tests that need real ones."""

import io
import tarfile

from PIL import Image

from tests.support.paths import shared


def read_photos(count: int, shard: str = "000005") -> dict[str, Image.Image]:
    """Key → photograph, the first ones of a shard. Skips the test where the data is not at hand."""
    path = shared(f"photos/{shard}.tar")
    photos: dict[str, Image.Image] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name.endswith(".jpg") else None
            if stream is not None:
                photos[member.name.removesuffix(".jpg")] = Image.open(io.BytesIO(stream.read()))
            if len(photos) == count:
                break
    return photos
