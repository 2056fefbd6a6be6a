"""Every block of code of README, docs/user and docs/operator runs, in the order of its page, as a reader would run it.

How a page states what its blocks need: tests/support/pages.py.
"""

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from PIL import Image

from curation_assets.world.pool import PlantedSample, plant_pool, render
from tests.conftest import TINY_OPTIONS
from tests.support.evaluation_folders import write_karpathy_coco
from tests.support.pages import Reader, blocks_of
from tests.support.paths import REPOSITORY, SHARED_DATA
from tests.support.photos import read_photos
from tests.support.scene_tars import write_pairs

README = REPOSITORY / "README.md"
PAGES = [README, *(page for path in ("user", "operator") for page in sorted((REPOSITORY / "docs" / path).glob("*.md")))]
WITH_BLOCKS = [page for page in PAGES[1:] if any("not run" not in block.marks for block in blocks_of(page))]


def pictures(count: int) -> list[tuple[Image.Image, str]]:
    """Photographs with their captions where they are at hand, else drawn scenes."""
    if (SHARED_DATA / "photos" / "captions.parquet").is_file():
        captions = dict(
            pl.read_parquet(SHARED_DATA / "photos" / "captions.parquet").select("key", "caption").iter_rows()
        )
        return [(photo, captions[key]) for key, photo in read_photos(count).items()]
    scenes: list[PlantedSample] = [scene for scene in plant_pool(4 * count, seed=3) if scene.kind == "clean"]
    return [(render(scene), scene.caption) for scene in scenes[:count]]


def write_data(folder: Path, *, shards: int, per_shard: int = 2) -> None:
    """What a reader has beforehand, in /data and in the working folder: tars, tables of captions, photographs."""
    samples = pictures(max(per_shard * shards, 24))
    for shard in range(shards):
        first = per_shard * shard
        write_pairs(folder / "my_folder" / f"{shard:05d}.tar", samples[first : first + per_shard], first)
    write_pairs(folder / "00000.tar", samples[:4])
    for shard in range(3):
        first = 8 * shard
        write_pairs(folder / "tars" / f"{shard:05d}.tar", samples[first : first + 8], first)
    captions = [caption for _, caption in samples[:20]]
    pl.DataFrame({"caption": captions}).write_csv(folder / "captions.csv")
    pl.DataFrame({"caption": captions, "url": [f"http://host.example/{n}.jpg" for n in range(20)]}).write_parquet(
        folder / "urls.parquet"
    )
    (folder / "captions.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
    rated = pl.DataFrame({"caption": captions, "rating": [n % 4 for n in range(20)]})
    for name in ("rated.tsv", "labels.tsv"):
        rated.write_csv(folder / name, separator="\t")
    samples[0][0].save(folder / "dog.jpg")


def write_benchmarks(folder: Path) -> None:
    """Sets to measure on and to keep out of training, as they are published, and a database of pictures."""
    samples = pictures(24)
    write_karpathy_coco(folder / "coco")
    write_karpathy_coco(folder / "flickr30k")
    (folder / "coco" / "val2017").mkdir()
    samples[4][0].save(folder / "coco" / "val2017" / "000000000139.jpg")  # of the pool, too
    (folder / "vqa").mkdir()
    question = "What is the man on the left side of the picture holding in his hand?"  # 13 words are compared
    (folder / "vqa" / "questions.jsonl").write_text(json.dumps({"question": question}) + "\n")
    np.save(folder / "imagenet_val_pdq.npy", np.random.default_rng(0).integers(0, 256, (8, 32), dtype=np.uint8))
    for number, (image, _) in enumerate(samples[8:14]):
        path = folder / "imagenet" / "val" / ("dog", "person")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    vectors = np.random.default_rng(1).normal(size=(14, 8)).astype(np.float32)
    np.save(folder / "i.npy", vectors[:4])
    np.save(folder / "t.npy", vectors[4:])
    np.save(folder / "own.npy", np.arange(10) % 4)
    write_pairs(folder / "photos" / "00000.tar", samples)
    for name in ("small.sqlite", "birds.sqlite"):
        with closing(sqlite3.connect(folder / name)) as database, database:
            database.execute("create table samples (caption text, image blob)")
            for image, caption in samples[:4]:
                buffer = io.BytesIO()
                image.save(buffer, "JPEG")
                database.execute("insert into samples values (?, ?)", (caption, buffer.getvalue()))


def test_every_block_is_run_written_or_says_why_not() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert len(blocks) > 60
    assert [fault for block in blocks if (fault := block.fault())] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_block_of_the_readme_runs_in_order_on_a_fresh_home(tmp_path: Path) -> None:
    write_data(tmp_path, shards=18)  # the page runs shards 3 to 17
    reader = Reader(
        tmp_path, tmp_path, URL="http://host.example/1.jpg", POOL="scenes",
        sample_id="pool.table('raw/samples')['sample_id'][0]",
    )  # fmt: skip
    # A checkout brings this declaration, of 2,000 scenes.
    shipped = yaml.safe_load((REPOSITORY / "data" / "pools" / "scenes.yaml").read_text(encoding="utf-8"))
    shipped["options"] |= {"size": 120, **TINY_OPTIONS}
    (reader.home / "pools").mkdir(parents=True)
    (reader.home / "pools" / "scenes.yaml").write_text(yaml.safe_dump(shipped), encoding="utf-8")
    blocks = blocks_of(README)
    assert {block.language for block in blocks} == {"bash", "python", "sql"}
    failed = reader.read(blocks)
    assert not failed, "\n\n".join(failed)


def make(folder: Path) -> None:
    """The data, and a home in which the pool `photos` has run."""
    write_data(folder, shards=3, per_shard=8)
    write_benchmarks(folder)
    reader = Reader(folder, folder)
    reader.bash("curate pool add photos /data/my_folder\ncurate run photos")
    ids = pl.read_parquet(reader.home / "work" / "photos" / "raw" / "samples" / "*" / "data.parquet")["sample_id"]
    ratings = pl.DataFrame({"sample_id": ids, "rating": [float(number % 4) for number in range(len(ids))]})
    ratings.write_csv(folder / "ratings.csv")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It is copied, never changed."""
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_in_order(page: Path, made: Path, tmp_path: Path) -> None:
    """In a copy of one home; `made` lies in /data of the page, its pool `photos` reads the tars there."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    failed = Reader(tmp_path, made, POOL="photos", NAME="photos").read(blocks_of(page))
    assert not failed, "\n\n".join(failed)
