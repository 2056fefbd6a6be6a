"""Clean photographs for tests of planted noise: drawn scenes as tars, or real photographs where they are at hand."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from curation_assets.world.pool import plant_evaluation_scenes
from tests.support.paths import SHARED_DATA

HELD_OUT = SHARED_DATA / "photos" / "000005.tar"
ALT_TEXTS = SHARED_DATA / "captions" / "alt_texts.parquet"
needs_photographs = pytest.mark.skipif(
    not (HELD_OUT.is_file() and ALT_TEXTS.is_file()), reason="../shared/data/photos or captions is not here"
)


def write_scene_tar(path: Path, count: int, *, seed: int = 3, captions: int = 5) -> Path:
    """`count` drawn scenes with so many captions each, in the layout of img2dataset."""
    with tarfile.open(path, "w") as tar:
        for number, (image, texts) in enumerate(plant_evaluation_scenes(count, seed)):
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=95)
            # the number keeps captions of two scenes apart, which may look alike
            named = [f"{text}, scene {number}" for text in texts[:captions]]
            meta = json.dumps({"caption": named[0], "captions": named}).encode()
            for suffix, data in ((".jpg", buffer.getvalue()), (".txt", named[0].encode()), (".json", meta)):
                info = tarfile.TarInfo(f"{number:05d}{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path
