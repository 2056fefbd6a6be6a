"""Files of hypotheses and references: every layout gives the same pairs, and what is wrong is a sentence."""

import json
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from curation_assets.stores.caption_files import CaptionPairs, find_images, read_caption_pairs
from tests.support.captioning import CANDIDATES, REFERENCES, write_coco

IDS = ["1", "2", "3", "4"]


def karpathy(folder: Path, field: str, ids: list[object]) -> Path:
    images = [
        {
            field: name,
            "filename": f"{i}.jpg",
            "filepath": "val2014",
            "split": "test",
            "sentences": [{"raw": t} for t in texts],
        }
        for i, (name, texts) in enumerate(zip(ids, REFERENCES, strict=True), start=1)
    ]
    images.append({field: 9, "filename": "9.jpg", "split": "train", "sentences": [{"raw": "of another split"}]})
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": images, "dataset": "own"}))
    return path


def test_coco_json_tables_and_karpathy_splits_give_the_same_pairs(tmp_path: Path) -> None:
    results, annotations = write_coco(tmp_path, REFERENCES, CANDIDATES)
    expected = CaptionPairs(IDS, CANDIDATES, REFERENCES, [f"{i:012d}.png" for i in range(1, 5)])
    assert read_caption_pairs(results, annotations) == expected
    rows = [(i, text) for i, texts in zip(IDS, REFERENCES, strict=True) for text in texts]
    table = pl.DataFrame(rows, schema=["image_id", "caption"], orient="row")
    of_candidates = pl.DataFrame({"image": IDS, "caption": CANDIDATES})
    for suffix, write in (("csv", "write_csv"), ("parquet", "write_parquet"), ("jsonl", "write_ndjson")):
        getattr(table, write)(tmp_path / f"references.{suffix}")
        getattr(of_candidates, write)(tmp_path / f"hypotheses.{suffix}")
        pairs = read_caption_pairs(tmp_path / f"hypotheses.{suffix}", tmp_path / f"references.{suffix}")
        assert (pairs.image_ids, pairs.hypotheses, pairs.references) == (IDS, CANDIDATES, REFERENCES)
    lists = pl.DataFrame({"image_id": [1, 2, 3, 4], "captions": REFERENCES})  # numbers, as a pool's table of them
    lists.write_parquet(tmp_path / "lists.parquet")
    assert read_caption_pairs(results, tmp_path / "lists.parquet").references == REFERENCES
    for field, ids in (("cocoid", [1, 2, 3, 4]), ("imgid", [1, 2, 3, 4])):
        pairs = read_caption_pairs(results, karpathy(tmp_path, field, list(ids)))
        assert (pairs.image_ids, pairs.references) == (IDS, REFERENCES)
        assert pairs.file_names[0] == "val2014/1.jpg"


def test_a_split_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("image_id,caption\n9,words\n")
    path = karpathy(tmp_path, "cocoid", [1, 2, 3, 4])
    assert read_caption_pairs(tmp_path / "one.csv", path, split="train").references == [["of another split"]]
    with pytest.raises(ValueError, match="has no split 'val'; its splits: test, train"):
        read_caption_pairs(tmp_path / "one.csv", path, split="val")
    with pytest.raises(ValueError, match="has no column split"):
        read_caption_pairs(tmp_path / "one.csv", tmp_path / "one.csv", split="val")


def test_images_that_differ_are_named(tmp_path: Path) -> None:
    results, annotations = write_coco(tmp_path, REFERENCES, CANDIDATES)
    few = tmp_path / "few.csv"
    few.write_text("image_id,caption\n3,x\n1,\n")
    with pytest.raises(ValueError, match=r"2 of 4 images of .* have no hypothesis .*: 2, 4; .* --subset"):
        read_caption_pairs(few, annotations)
    pairs = read_caption_pairs(few, annotations, only_hypotheses=True)
    assert (pairs.image_ids, pairs.hypotheses) == (["1", "3"], ["", "x"]), "an empty caption is a caption"
    other = tmp_path / "other.csv"
    other.write_text("image_id,caption\n000000000001,x\n")
    with pytest.raises(ValueError, match=r"without references .*: 000000000001; its images are named 1, 2, 3 and "):
        read_caption_pairs(other, annotations, only_hypotheses=True)
    with pytest.raises(ValueError, match=r"2 images have several hypotheses \(2, 1\)"):
        read_caption_pairs(_table(tmp_path, ["1", "2", "2", "1", "1"]), annotations)
    assert read_caption_pairs(results, results).references == [[text] for text in CANDIDATES]


def _table(folder: Path, ids: list[str]) -> Path:
    pl.DataFrame({"image_id": ids, "caption": ["x"] * len(ids)}).write_csv(folder / "twice.csv")
    return folder / "twice.csv"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is no JSON"),
        ("not json", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "holds no caption"),
        ("7", "expected COCO"),
        ('{"info": {}}', "expected COCO"),
        ('[{"image_id": 1}]', "entry 1 is not {image_id, caption}"),
        ('[{"image_id": 1, "caption": "x"}, "y"]', "entry 2 is not {image_id, caption}"),
        ('[{"image_id": 1, "caption": null}]', "entry 1 is not {image_id, caption}"),
    ],
)
def test_files_that_are_something_else(content: str, sentence: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.json"
    good.write_text("image_id,caption\n1,x\n")
    bad.write_text(content)
    for hypotheses, references in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match=sentence.replace("{", r"\{")) as caught:
            read_caption_pairs(hypotheses, references)
        assert str(bad) in str(caught.value)


def test_tables_that_are_something_else(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("image_id,caption\n1,x\n")
    bad.write_text("name,text\n1,x\n")
    with pytest.raises(ValueError, match=r"expected the columns image_id .* and caption, got name, text"):
        read_caption_pairs(bad, good)
    bad.write_text("image_id,caption\n")
    with pytest.raises(ValueError, match="holds no caption"):
        read_caption_pairs(good, bad)
    pl.DataFrame({"image_id": ["1", "2"], "caption": ["x", None]}).write_parquet(tmp_path / "null.parquet")
    with pytest.raises(ValueError, match=r"row 2 has no image_id or no caption \(1 such rows\)"):
        read_caption_pairs(tmp_path / "null.parquet", good)
    with pytest.raises(FileNotFoundError, match="no file"):
        read_caption_pairs(good, tmp_path / "absent.json")


def test_images_are_found_by_name_or_id_and_decoded_within_limits(tmp_path: Path) -> None:
    pairs = CaptionPairs(["139", "b"], ["x", "y"], [["x"], ["y"]], [None, "val/b.png"])
    with pytest.raises(ValueError, match=r"2 of 2 images are not in .*: 139, val/b.png"):
        find_images(tmp_path, pairs)
    Image.new("RGB", (3, 2), "red").save(tmp_path / "000000000139.jpg")
    (tmp_path / "b.png").write_bytes(b"no image")
    images = find_images(tmp_path, pairs)
    assert len(images) == 2
    assert images[0].size == (3, 2)
    with pytest.raises(ValueError, match=r"b\.png cannot be read as an image"):
        images[1]
    outside = CaptionPairs(["../secret"], ["x"], [["x"]], ["/etc/hostname"])
    with pytest.raises(ValueError, match="1 of 1 images are not in"):
        find_images(tmp_path, outside)
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_images(tmp_path / "absent", pairs)
