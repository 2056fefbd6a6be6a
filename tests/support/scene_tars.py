"""Tars of planted scenes, or of other pictures: a pool whose shards are files."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from curation_assets.world.pool import PlantedSample, render
from tests.support.tars import encoded, tar_of


def write_scenes(path: Path, scenes: Sequence[PlantedSample], first_key: int = 0) -> None:
    """KEY.jpg and KEY.txt per scene; keys count from `first_key` over the whole pool, so ids differ."""
    write_pairs(path, ((render(scene), scene.caption) for scene in scenes), first_key)


def write_pairs(path: Path, pairs: Iterable[tuple[Image.Image, str]], first_key: int = 0) -> None:
    """KEY.jpg and KEY.txt per picture and caption; keys count from `first_key`."""
    members = {}
    for number, (image, caption) in enumerate(pairs, first_key):
        key = f"{number:05d}"
        members |= {f"{key}.jpg": encoded(image, quality=92), f"{key}.txt": caption.encode()}
    tar_of(path, members)
