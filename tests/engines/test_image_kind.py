"""embedded:image_kind: photographs among drawn pages, at no pass of the backbones beside photo_pair's."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import KindClassifier
from curation_assets.core.settings import Profile
from curation_assets.engines import clear_engines, load_engine
from curation_assets.engines.efficientnet import FeatureExtractor
from curation_assets.engines.photo_pair import _pixels_digest
from curation_assets.methods.image_kind import image_kind
from tests.support.paths import WEIGHTS
from tests.support.photos import read_photos


def profile(kind_classifier: str = "embedded:image_kind") -> Profile:
    roles = {"kind_classifier": kind_classifier, "image_text_encoder": "embedded:photo_pair"}
    return Profile("test", roles, device="cpu")


@pytest.fixture(scope="module")
def classifier() -> Any:
    return load_engine("kind_classifier", profile())


def page(seed: int) -> Image.Image:
    """Lines of text and a frame, as a window of a program has them."""
    image = Image.new("RGB", (200, 150), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 199, 14), fill="navy")
    draw.rectangle((0, 0, 199, 149), outline="black")
    for line in range(10):
        draw.text((6, 20 + 12 * line), f"File {seed} Edit View {line * 37 + seed}  Options  Help", fill="black")
    return image


def test_photographs_are_told_from_drawn_pages(classifier: Any) -> None:
    assert isinstance(classifier, KindClassifier)
    photos = list(read_photos(20).values())
    values = image_kind([*photos, *map(page, range(4))], classifier)
    found = values.details["kind"]
    assert found[:20].count("photo") >= 18
    assert "photo" not in found[20:]
    assert values.value[:20].min() > values.value[20:].max()
    for value, kind, probability in zip(values.value, found, values.details["kind_probability"], strict=True):
        assert 0 <= value <= probability <= 1
        assert (value == probability) == (kind == "photo")


def test_probabilities_are_of_the_image_alone(classifier: Any) -> None:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in ((64, 48), (1, 1), (30, 90))]
    images += [page(1), Image.new("L", (50, 50), 128), Image.new("RGBA", (30, 90), (255, 0, 0, 255))]
    together = classifier.kind_probabilities(images)
    assert together.shape == (6, len(classifier.kinds)) == (6, 6)
    np.testing.assert_allclose(together.sum(axis=1), 1.0, atol=1e-12)
    alone = np.concatenate([classifier.kind_probabilities([one]) for one in images[::-1]])[::-1]
    np.testing.assert_allclose(alone, together, atol=1e-5)
    assert classifier.kind_probabilities([]).shape == (0, 6)


def test_what_photo_pair_has_computed_is_not_computed_again(classifier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder: Any = load_engine("image_text_encoder", profile())
    images, seen = [page(seed) for seed in range(50, 56)], []
    pooled = FeatureExtractor.pooled

    def counted(self: Any, images: Any) -> Any:
        seen.append(len(images))
        return pooled(self, images)

    monkeypatch.setattr(FeatureExtractor, "pooled", counted)
    vectors = encoder.embed_images(images)
    assert sum(seen) == 2 * len(images)  # two backbones
    probabilities = classifier.kind_probabilities(images)
    assert sum(seen) == 2 * len(images)
    fresh = encoder.features(images)  # computed, whatever is remembered
    np.testing.assert_array_equal(vectors, encoder.head.images(*fresh).numpy())
    np.testing.assert_array_equal(probabilities, classifier.head(fresh[0]))


def test_a_shared_image_keeps_its_digest_until_it_is_drawn_upon() -> None:
    image = page(0)
    image.readonly = 1
    before = _pixels_digest(image)
    assert before == _pixels_digest(image) == _pixels_digest(page(0))
    ImageDraw.Draw(image).rectangle((50, 50, 60, 60), fill="red")
    assert _pixels_digest(image) != before
    own = page(0)  # nobody else reads it: its pixels may change in place
    assert _pixels_digest(own) == before
    own.putpixel((5, 5), (1, 2, 3))
    assert _pixels_digest(own) != before


def test_weights_must_be_those_of_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "image_kind"
    shutil.copytree(WEIGHTS / "image_kind", folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "weights_sha256": "0" * 64}))
    clear_engines()
    with pytest.raises(ModelUnavailableError, match="expected sha256 000000000000"):
        load_engine("kind_classifier", profile(f"path:{folder}"))
    with pytest.raises(ValueError, match="tells no kinds of images"):
        load_engine("kind_classifier", profile("embedded:photo_pair"))
