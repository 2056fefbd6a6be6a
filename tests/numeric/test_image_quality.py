"""Image quality: scores that can be worked out by hand."""

import numpy as np
import pytest
from PIL import Image

from curation_assets.numeric.image_quality import (
    aspect_score,
    blur_score,
    brightness_percentiles,
    cleanvision_blur,
    dark_score,
    entropy_score,
    laplacian_variance,
    light_score,
)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_the_laplacian_of_one_bright_pixel() -> None:
    image = Image.new("RGB", (5, 5))
    image.putpixel((2, 2), (20, 20, 20))
    # inside the frame nine values: −80 in the middle, 20 at four neighbours
    assert laplacian_variance(image) == pytest.approx((80**2 + 4 * 20**2) / 9)
    assert np.isnan(laplacian_variance(Image.new("RGB", (500, 6)))), "128 × 1 at the side that is measured"


def test_a_variance_of_100_scores_half() -> None:
    assert [blur_score(variance) for variance in (0.0, 100.0, 8100.0)] == [0.0, 0.5, 0.9]


def test_blur_is_measured_at_128_px() -> None:
    image = noise(128, 96).resize((1280, 960), Image.Resampling.BICUBIC)
    small = image.resize((128, 96), Image.Resampling.BICUBIC)
    assert laplacian_variance(image) == laplacian_variance(small)
    half = small.resize((64, 48), Image.Resampling.BICUBIC)
    assert laplacian_variance(half) != laplacian_variance(small), "smaller images stay as they are"


def test_cleanvision_counts_flat_colours_as_sharp() -> None:
    # one grey level: no edge, and all 4,096 pixels in one of 256 counts
    plain = Image.new("RGB", (64, 64))
    assert cleanvision_blur(plain) == pytest.approx(1 - np.exp(-np.std([4096] + [0] * 255) / 100))
    image = Image.new("RGB", (5, 5))
    image.putpixel((2, 2), (20, 20, 20))
    # edges: 8 · 20 in the middle, −20 around it is cut to 0; the counts 24 and 1 score .015, which does not count
    deviation = np.std([160] + [0] * 24)
    assert cleanvision_blur(image) == pytest.approx(1 - np.exp(-deviation / 100))


def test_brightness_weighs_the_channels() -> None:
    for colour, weight in (((255, 0, 0), 0.241), ((0, 255, 0), 0.691), ((0, 0, 255), 0.068), ((255, 255, 255), 1.0)):
        assert brightness_percentiles(Image.new("RGB", (3, 3), colour), (50,)) == pytest.approx([np.sqrt(weight)])


def test_percentiles_count_pixels() -> None:
    image = Image.new("RGB", (10, 10))
    image.paste("white", (0, 0, 10, 1))  # a tenth of the pixels
    assert dark_score(image) == 1.0
    assert light_score(image) == 1.0
    assert dark_score(Image.new("RGB", (10, 10), (51, 51, 51))) == pytest.approx(0.2)
    assert light_score(Image.new("RGB", (10, 10), "white")) == pytest.approx(0.0)
    lit = Image.new("RGB", (100, 100))
    lit.paste("white", (0, 0, 5, 10))  # half a percent is above the 99th percentile
    assert dark_score(lit) == 0.0


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 3), (7, 5), (64, 48), (256, 257)])
def test_percentiles_are_numpys_to_the_bit(size: tuple[int, int]) -> None:
    """Order statistics of whole numbers against `np.percentile` of every pixel's brightness; 256 × 257 is two parts."""
    for seed, image in enumerate([noise(*size), noise(*size, seed=1), Image.new("RGB", size, (3, 141, 59))]):
        squares = np.square(np.asarray(image), dtype=np.int64) @ (241, 691, 68)
        of_pixels = np.sqrt(squares / 1000) / 255  # (H, W)
        percentiles = (99, 0, 1, 5, 37.5, 50, 95, 100)
        found = brightness_percentiles(image, percentiles)
        assert found == np.percentile(of_pixels, percentiles).tolist(), seed


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_changed_image_is_measured_again(is_shared: bool) -> None:
    image = Image.new("RGB", (10, 10), (51, 51, 51))
    image.readonly = int(is_shared)
    assert (dark_score(image), light_score(image)) == pytest.approx((0.2, 0.8))
    image.paste("white", (0, 0, 10, 10))
    assert (dark_score(image), light_score(image)) == pytest.approx((1.0, 0.0))


def test_both_scores_of_a_shared_image_take_its_pixels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise(20, 10)
    expected = dark_score(image), light_score(image)
    image.readonly = 1
    taken = []
    monkeypatch.setattr(image, "tobytes", lambda *given: taken.append(given) or Image.Image.tobytes(image, *given))
    assert (dark_score(image), light_score(image)) == expected
    assert len(taken) == 1


def test_the_laplacian_of_noise_is_that_of_floats() -> None:
    grey = np.asarray(noise(90, 70).convert("L"), dtype=np.float64)
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    assert laplacian_variance(noise(90, 70)) == np.var(around - 4 * grey[1:-1, 1:-1])


def test_entropy_counts_channel_values() -> None:
    assert entropy_score(Image.new("RGB", (4, 4), "red")) == pytest.approx(np.log2(3) / 10)
    even = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)[None]  # (1, 256, 3)
    assert entropy_score(Image.fromarray(even)) == pytest.approx(np.log2(768) / 10)


def test_a_strip_lies_or_stands() -> None:
    assert aspect_score(300, 100) == aspect_score(100, 300) == pytest.approx(1 / 3)
    assert aspect_score(7, 7) == 1.0
    with pytest.raises(ValueError, match="at least 1 px, got 0 × 5"):
        aspect_score(0, 5)
