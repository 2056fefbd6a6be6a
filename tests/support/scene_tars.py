"""Tars of planted scenes, or of other pictures: a pool whose shards are files."""

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from curation_assets.world.pool import PlantedSample, render


def write_scenes(path: Path, scenes: Sequence[PlantedSample], first_key: int = 0) -> None:
    """KEY.jpg and KEY.txt per scene; keys count from `first_key` over the whole pool, so ids differ."""
    write_pairs(path, ((render(scene), scene.caption) for scene in scenes), first_key)


def write_pairs(path: Path, pairs: Iterable[tuple[Image.Image, str]], first_key: int = 0) -> None:
    """KEY.jpg and KEY.txt per picture and caption; keys count from `first_key`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, (image, caption) in enumerate(pairs, first_key):
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=92)
            for suffix, data in ((".jpg", buffer.getvalue()), (".txt", caption.encode())):
                info = tarfile.TarInfo(f"{number:05d}{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
