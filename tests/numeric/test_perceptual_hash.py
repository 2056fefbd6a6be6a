"""pHash against the package that defines it."""

import imagehash
import numpy as np
from PIL import Image

from curation_assets.numeric.perceptual_hash import perceptual_hashes


def images() -> list[Image.Image]:
    """Noise of several sizes, and flat images, whose frequencies are nothing but rounding."""
    rng = np.random.default_rng(5)
    sizes = [(1, 1), (5, 40), (32, 32), (100, 70), (333, 222)]
    noisy = [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]
    smooth = [image.resize((160, 120), Image.Resampling.BICUBIC) for image in noisy]
    return [*noisy, *smooth, *(Image.new("RGB", (50, 30), (level, 7, level)) for level in (0, 127, 255))]


def test_hashes_are_those_of_imagehash() -> None:
    expected = [str(imagehash.phash(image)) for image in images()]
    assert len(set(expected)) > 5
    assert perceptual_hashes(images()) == expected


def test_a_hash_does_not_depend_on_its_neighbours() -> None:
    assert [perceptual_hashes([image])[0] for image in images()] == perceptual_hashes(images())
    assert perceptual_hashes([]) == []


def test_half_of_the_bits_are_set_and_a_smaller_copy_is_near() -> None:
    large = images()[9].resize((640, 480), Image.Resampling.BICUBIC)
    first, second = (int(digits, 16) for digits in perceptual_hashes([large, large.resize((200, 150))]))
    assert first.bit_count() == 32, "as many frequencies are above the median as below"
    assert (first ^ second).bit_count() <= 4
