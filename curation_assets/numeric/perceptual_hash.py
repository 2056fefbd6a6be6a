"""pHash: 64 bits of an image that survive scaling and compression."""

from collections.abc import Sequence

import numpy as np
from PIL import Image
from scipy.fftpack import dct

SIDE_PX = 32  # of the grey image that is transformed
FREQUENCIES = 8  # in each direction, the lowest


def perceptual_hashes(images: Sequence[Image.Image]) -> list[str]:
    """pHash of RGB images, 16 hex digits each: the bits of `imagehash.phash` (ImageHash 4.3), a batch at a time.

    A bit is 1 where one of the 8 × 8 lowest frequencies of the grey image at 32 × 32 px, read row by row, is above
    their median. An image's hash does not depend on its neighbours.
    """
    if not images:
        return []
    small = (image.convert("L").resize((SIDE_PX, SIDE_PX), Image.Resampling.LANCZOS) for image in images)
    grey = np.stack([np.asarray(image) for image in small])  # (N, 32, 32)
    low = dct(dct(grey, axis=1), axis=2)[:, :FREQUENCIES, :FREQUENCIES].reshape(len(images), -1)  # (N, 64)
    bits = low > np.median(low, axis=1, keepdims=True)
    return [row.tobytes().hex() for row in np.packbits(bits, axis=1)]
