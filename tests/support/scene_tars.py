"""Tars of planted scenes: a pool whose shards are files, so that one may come later or under another name."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from curation_assets.world.pool import PlantedSample, render


def write_scenes(path: Path, scenes: Sequence[PlantedSample], first_key: int = 0) -> None:
    """KEY.jpg and KEY.txt per scene; keys count from `first_key` over the whole pool, so ids differ."""
    with tarfile.open(path, "w") as tar:
        for number, scene in enumerate(scenes, first_key):
            buffer = io.BytesIO()
            render(scene).save(buffer, "JPEG", quality=92)
            for suffix, data in ((".jpg", buffer.getvalue()), (".txt", scene.caption.encode())):
                info = tarfile.TarInfo(f"{number:05d}{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
