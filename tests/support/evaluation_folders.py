"""Tiny evaluation sets as they lie on a disk: real jpegs, in the layouts that the field publishes."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.tars import encoded


def jpeg(seed: int) -> bytes:
    """A real jpeg of noise, 48 wide and 32 high."""
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 48, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG")


def write_jpeg(path: Path, seed: int = 0) -> Path:
    """Write one, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(seed))
    return path


def write_json(path: Path, content: object) -> Path:
    """Write JSON, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_karpathy_coco(root: Path) -> Path:
    """dataset_coco.json: test images 7 (6 captions) and 9 (5), a test image 11 whose file is absent, a train image."""

    def entry(number: int, split: str, captions: int) -> dict[str, object]:
        texts = [{"raw": f"caption {n} of {number} ", "tokens": [], "sentid": n} for n in range(captions)]
        name = f"COCO_val2014_{number:012d}.jpg"
        return {"filepath": "val2014", "filename": name, "cocoid": number, "split": split, "sentences": texts}

    entries = [entry(7, "test", 6), entry(8, "train", 5), entry(9, "test", 5), entry(11, "test", 5)]
    for number in (7, 8, 9):
        write_jpeg(root / "val2014" / f"COCO_val2014_{number:012d}.jpg", number)
    return write_json(root / "dataset_coco.json", {"dataset": "coco", "images": entries})


def write_coco_captions(path: Path, images: Mapping[int, str], captions: int) -> Path:
    """A file in COCO's format: images by id and file name, `captions` of each, annotations image by image reversed."""
    return write_json(
        path,
        {
            "images": [{"id": number, "file_name": name} for number, name in images.items()],
            "annotations": [
                {"id": 100 * number + n, "image_id": number, "caption": f"caption {n} of {number}"}
                for number in reversed(list(images))
                for n in range(captions)
            ],
        },
    )
