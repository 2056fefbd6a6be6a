"""Clean photographs for tests of planted noise: drawn scenes as tars, or real photographs where they are at hand."""

import json
from pathlib import Path

import pytest

from curation_assets.world.pool import plant_evaluation_scenes
from tests.support.paths import SHARED_DATA
from tests.support.tars import encoded, tar_of

HELD_OUT = SHARED_DATA / "photos" / "000005.tar"
ALT_TEXTS = SHARED_DATA / "captions" / "alt_texts.parquet"
needs_photographs = pytest.mark.skipif(
    not (HELD_OUT.is_file() and ALT_TEXTS.is_file()), reason="../shared/data/photos or captions is not here"
)


def write_scene_tar(path: Path, count: int, *, seed: int = 3, captions: int = 5) -> Path:
    """`count` drawn scenes with so many captions each, in the layout of img2dataset."""
    members = {}
    for number, (image, texts) in enumerate(plant_evaluation_scenes(count, seed)):
        # the number keeps captions of two scenes apart, which may look alike
        named = [f"{text}, scene {number}" for text in texts[:captions]]
        meta = json.dumps({"caption": named[0], "captions": named}).encode()
        key, image_bytes = f"{number:05d}", encoded(image, quality=95)
        members |= {f"{key}.jpg": image_bytes, f"{key}.txt": named[0].encode(), f"{key}.json": meta}
    return tar_of(path, members)
