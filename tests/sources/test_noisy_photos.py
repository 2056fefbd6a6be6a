"""A folder of photographs with planted noise: bytes, truth, and a pool that reads it."""

import io
import json
import tarfile
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from curation_assets.core.settings import load_settings
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.kinds.webdataset import read_tar_rows
from curation_assets.sources.noisy_photos import (
    TRUTH,
    TRUTH_SCHEMA,
    read_planted_truth,
    write_noisy_photos,
)
from curation_assets.world.photo_damage import DARK_LEVEL, TINY_PX, luminance
from tests.support.noisy_photos import write_scene_tar
from tests.support.tars import tar_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("noisy")
    write_scene_tar(base / "000007.tar", 100)
    write_noisy_photos([base / "000007.tar"], base / "pool", seed=5, shard_size=50)
    return base


def images_of(folder: Path) -> dict[str, Image.Image]:
    """TAR/KEY → image."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".jpg"):
                    data = tar.extractfile(member)
                    assert data is not None
                    found[f"{path.stem}/{member.name[:-4]}"] = Image.open(io.BytesIO(data.read())).convert("RGB")
    return found


def test_truth_and_tars_join_one_to_one(folder: Path) -> None:
    truth = read_planted_truth(folder / "pool" / TRUTH)
    assert truth.schema == pl.Schema(TRUTH_SCHEMA)
    rows = pl.concat([read_tar_rows(tar) for tar in sorted((folder / "pool").glob("*.tar"))])
    joined = rows.join(truth, on="sample_id", how="full", validate="1:1")
    assert joined.height == rows.height == truth.height == 114
    assert joined.null_count().select("kind", "caption").row(0) == (0, 0)
    assert joined.filter(pl.col("member") != pl.col("key") + ".jpg").height == 0
    assert rows["source_reason"].null_count() == rows.height
    assert truth["shard"].unique().sort().to_list() == ["00000", "00001", "00002"]


def test_tars_and_tables_hold_nothing_of_the_truth(folder: Path) -> None:
    planted = set(TRUTH_SCHEMA) - {"sample_id", "shard", "key"}
    for tar in sorted((folder / "pool").glob("*.tar")):
        with tarfile.open(tar) as opened:
            for member in opened.getmembers():
                assert (member.mtime, member.uid, member.uname) == (0, 0, "")
                if member.name.endswith(".json"):
                    content = json.load(opened.extractfile(member))  # type: ignore[arg-type]
                    assert not planted & set(content)
        assert not planted & set(pl.read_parquet(tar.with_suffix(".parquet")).columns)


def test_images_are_what_their_kind_says(folder: Path) -> None:
    truth = read_planted_truth(folder / "pool" / TRUTH)
    images, sources = images_of(folder / "pool"), images_of(folder)
    seen = set()
    for row in truth.iter_rows(named=True):
        image, source = images[f"{row['shard']}/{row['key']}"], sources.get(row["photo"])
        seen.add(row["kind"])
        match row["kind"]:
            case "dark":
                assert luminance(image) < DARK_LEVEL[1] + 2
            case "odd_size":
                is_tiny = row["detail"].startswith("tiny")
                assert max(image.size) <= TINY_PX[1] if is_tiny else max(image.size) >= 4 * min(image.size)
            case "text_only":
                assert source is None
                assert image.size == (256, 256)
            case "blurred":
                assert source is not None
                assert image.size == source.size
                assert image.tobytes() != source.tobytes()
            case "duplicate":
                assert source is not None
                assert image.tobytes() != source.tobytes()
                originals = truth.filter((pl.col("photo") == row["photo"]) & (pl.col("kind") == "clean"))
                assert originals.height == 1
            case _:
                assert source is not None
                assert image.tobytes() == source.tobytes()
                assert (row["caption_of"] == row["photo"]) == (row["kind"] == "clean")
    assert len(seen) == 10


def test_the_same_arguments_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_noisy_photos([folder / "000007.tar"], tmp_path / "again", seed=5, shard_size=50)
    write_noisy_photos([folder / "000007.tar"], tmp_path / "other", seed=6, shard_size=50)
    names = sorted(str(path.relative_to(folder / "pool")) for path in (folder / "pool").rglob("*") if path.is_file())
    assert len(names) == 3 * 2 + 1
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder / "pool" / name).read_bytes(), name
    assert (tmp_path / "other" / "00000.tar").read_bytes() != (folder / "pool" / "00000.tar").read_bytes()


def test_a_pool_is_declared_on_it(folder: Path, tmp_path: Path) -> None:
    pool = add_pool(load_settings(tmp_path, "embedded"), "noisy", folder / "pool")
    assert pool.kind == "webdataset"
    assert pool.expected_rows(load_settings(tmp_path, "embedded")) == 114


def test_captions_come_from_the_json_or_from_the_text(tmp_path: Path) -> None:
    write_scene_tar(tmp_path / "one.tar", 20, captions=1)
    truth = write_noisy_photos([tmp_path], tmp_path / "pool", mix={"clean": 0.7, "duplicate": 0.3})
    captions = pl.concat([read_tar_rows(tmp_path / "pool" / "00000.tar")]).join(truth, on="sample_id")
    copies = captions.filter(pl.col("photo").is_duplicated()).group_by("photo").agg(pl.col("caption").n_unique())
    assert copies["caption"].unique().to_list() == [1]  # one caption is all there is


def test_what_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    tar = folder / "000007.tar"
    with pytest.raises(ValueError, match="exists already"):
        write_noisy_photos([tar], folder / "pool")
    with pytest.raises(ValueError, match="expected tars of photographs"):
        write_noisy_photos([tmp_path], tmp_path / "pool")
    with pytest.raises(ValueError, match="different names"):
        write_noisy_photos([tar, tar], tmp_path / "pool")
    with pytest.raises(ValueError, match="shard_size must be at least 1"):
        write_noisy_photos([tar], tmp_path / "pool", shard_size=0)
    tar_of(tmp_path / "broken.tar", (("1.jpg", b"no image"), ("1.txt", b"a dog")))
    with pytest.raises(ValueError, match="broken/1 is not sound"):
        write_noisy_photos([tmp_path / "broken.tar"], tmp_path / "pool", mix={"clean": 1})
    assert not (tmp_path / "pool").exists()


def test_a_truth_without_kinds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file"):
        read_planted_truth(tmp_path / "no.parquet")
    for number, content in enumerate(({"sample_id": ["a"]}, {"sample_id": ["a", "a"], "kind": ["dark", "clean"]})):
        pl.DataFrame(content).write_parquet(tmp_path / f"{number}.parquet")
        with pytest.raises(ValueError, match="must have the columns sample_id and kind, each sample once"):
            read_planted_truth(tmp_path / f"{number}.parquet")
