"""Patch features: small, and still those of the encoder."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from curation_assets.engines.patch_features import patch_features


class Wide:
    """An encoder of 100 patches that are 1,280 numbers wide, all drawn from one pixel."""

    def embed_patches(self, images: Sequence[Image.Image]) -> np.ndarray:
        seeds = [image.getpixel((0, 0))[0] for image in images]  # type: ignore[index]
        return np.stack([np.random.default_rng(seed).normal(size=(100, 1280)) for seed in seeds]).astype(np.float32)


class Pooled:
    """An encoder without patches."""

    def embed_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        return np.full((len(images), 8), 0.5, dtype=np.float32)


IMAGES = [Image.new("RGB", (4, 4), (value, 0, 0)) for value in (1, 2, 3)]


def test_wide_states_keep_their_geometry() -> None:
    features = patch_features(Wide(), IMAGES)
    assert features.shape == (3, 65, 256)
    assert features.dtype == np.float16
    vectors = Wide().embed_patches(IMAGES).mean(axis=1)  # (3, 1280)
    small = features.astype(np.float64).mean(axis=1)
    np.testing.assert_allclose(np.linalg.norm(small, axis=1), np.linalg.norm(vectors, axis=1), rtol=0.25)
    # no image sees its neighbours, up to the last bit of a float16 (a product's kernel depends on its size)
    np.testing.assert_allclose(patch_features(Wide(), IMAGES[1:2]), features[1:2], rtol=1e-3, atol=1e-6)


def test_an_encoder_without_patches_gives_its_embedding() -> None:
    assert patch_features(Pooled(), IMAGES).tolist() == np.full((3, 1, 8), 0.5).tolist()
