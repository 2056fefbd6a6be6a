"""Evaluation sets by their layout: each written as it is published, and what is wrong with one becomes a sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from curation_assets.evaluation.sets.read_set import EvaluationImage, load_image, read_evaluation_set
from curation_assets.stores.caption_files import read_caption_pairs
from curation_assets.stores.images import ImageLimits, ImageRejected
from curation_assets.world.bank.captions import bank_captions
from tests.support.evaluation_folders import (
    jpeg,
    write_jpeg,
    write_json,
    write_karpathy_coco,
)
from tests.support.paths import shared
from tests.support.tars import tar_of

# -- Karpathy's JSON


@pytest.mark.parametrize("is_file", [False, True])
def test_karpathys_coco_has_five_captions_per_image_of_the_test_split(tmp_path: Path, is_file: bool) -> None:
    file = write_karpathy_coco(tmp_path)
    found = read_evaluation_set(file if is_file else tmp_path)
    assert (found.name, found.layout) == ("coco_test", "karpathy")
    assert [image.image_id for image in found.images] == ["7", "9"]
    assert found.images[0].captions == tuple(f"caption {n} of 7" for n in range(5))
    assert found.left_out == {"caption_over_count": 1, "image_not_found": 1}
    assert load_image(found.images[0]).size == (48, 32)
    assert read_evaluation_set(tmp_path, split="train").images[0].image_id == "8"
    limited = read_evaluation_set(tmp_path, limit=1)
    assert (len(limited.images), limited.left_out["over_limit"]) == (1, 1)


def test_karpathys_train_has_restval(tmp_path: Path) -> None:
    entries = [
        {"filename": f"{n}.jpg", "split": split, "cocoid": n, "sentences": [{"raw": f"caption {n}"}]}
        for n, split in enumerate(("test", "train", "restval", "val"))
    ]
    for number in range(4):
        write_jpeg(tmp_path / "images" / f"{number}.jpg", number)
    file = write_json(tmp_path / "dataset_coco.json", {"dataset": "coco", "images": entries})
    for split, ids in (("train", ["1", "2"]), ("restval", ["2"]), ("test", ["0"])):
        assert [image.image_id for image in read_evaluation_set(tmp_path, split=split).images] == ids
        hypotheses = write_json(tmp_path / "h.json", [{"image_id": int(one), "caption": "a dog"} for one in ids])
        assert read_caption_pairs(hypotheses, file, split=split).references == [[f"caption {one}"] for one in ids]


def test_karpathys_flickr_lies_beside_its_images(tmp_path: Path) -> None:
    texts = [{"raw": "two dogs", "sentid": 0}]
    write_json(
        tmp_path / "dataset_flickr30k.json",
        {"dataset": "flickr30k", "images": [{"filename": "1.jpg", "split": "test", "sentences": texts}]},
    )
    write_jpeg(tmp_path / "flickr30k-images" / "1.jpg")
    found = read_evaluation_set(tmp_path)
    assert (found.name, found.images[0].image_id, found.images[0].captions) == ("flickr30k_test", "1", ("two dogs",))


def test_of_several_files_the_given_one_is_read(tmp_path: Path) -> None:
    coco = write_karpathy_coco(tmp_path)
    entry = {"filename": "1.jpg", "split": "test", "sentences": [{"raw": "two dogs"}]}
    flickr = write_json(tmp_path / "dataset_flickr8k.json", {"dataset": "flickr8k", "images": [entry]})
    write_jpeg(tmp_path / "images" / "1.jpg")
    with pytest.raises(ValueError, match=r"holds dataset_coco.json, dataset_flickr8k.json; give one of these files"):
        read_evaluation_set(tmp_path)
    assert read_evaluation_set(coco).name == "coco_test"
    assert read_evaluation_set(flickr).images[0].captions == ("two dogs",)


# -- tars


def test_tars_of_img2dataset_have_one_caption_or_a_list(tmp_path: Path) -> None:
    both = json.dumps({"captions": ["a dog", "", "a pet"]}).encode()
    tar_of(
        tmp_path / "00000.tar",
        {
            "000000000.jpg": jpeg(0),
            "000000000.txt": b"a dog\nthat runs\n",
            "000000000.json": b"{}",
            "000000001.jpg": jpeg(1),
            "000000001.json": both,
            "000000002.jpg": jpeg(2),
            "000000003.txt": b"no picture",
            "README.md": b"not a sample",
        },
    )
    found = read_evaluation_set(tmp_path)
    assert [(image.image_id, image.captions) for image in found.images] == [
        ("000000000", ("a dog\nthat runs",)),
        ("000000001", ("a dog", "a pet")),
    ]
    assert found.left_out == {"caption_blank": 1, "missing_image": 1, "no_caption": 1}
    assert load_image(found.images[1]).size == (48, 32)
    assert read_evaluation_set(tmp_path / "00000.tar").images == found.images


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_line_feeds_alone_end_a_caption(tmp_path: Path, mark: str) -> None:
    captions = (f"a dog{mark}that runs", f"a{mark}pet")
    text = "\n".join(captions)
    tar_of(tmp_path / "tars" / "0.tar", {"a.jpg": jpeg(0), "a.txt": text.replace("\n", "\r\n").encode()})
    (tmp_path / "bank.txt").write_text(text, encoding="utf-8", newline="")
    assert read_evaluation_set(tmp_path / "tars").images[0].captions == captions
    assert set(bank_captions(tmp_path / "bank.txt")) == set(captions)


def test_tars_of_clip_benchmark_have_captions_by_line(tmp_path: Path) -> None:
    retrieval = tmp_path / "retrieval"
    tar_of(retrieval / "test" / "0.tar", {"s0.jpg": jpeg(0), "s0.txt": b"a dog\na pet\n"})
    tar_of(retrieval / "test" / "1.tar", {"s0.jpg": jpeg(1), "s0.txt": b"a cat"})
    tar_of(retrieval / "train" / "0.tar", {"s9.jpg": jpeg(9), "s9.txt": b"a cow"})
    found = read_evaluation_set(retrieval)
    assert [(image.image_id, image.captions) for image in found.images] == [
        ("0/s0", ("a dog", "a pet")),
        ("1/s0", ("a cat",)),
    ]


def test_a_cut_tar_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    tar = tar_of(tmp_path / "0.tar", {"a.txt": b"a dog", "a.jpg": jpeg(0), "b.txt": b"a cat", "b.jpg": jpeg(1)})
    data = tar.read_bytes()
    tar.write_bytes(data[: data.rindex(jpeg(1)[:64]) + 100])
    found = read_evaluation_set(tmp_path)
    assert ([image.image_id for image in found.images], found.left_out) == (
        ["a"],
        {"image_truncated": 1, "tar_damaged": 1},
    )


# -- what is wrong


def _karpathy_of(filename: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        write_jpeg(root.parent / "secret.jpg")
        entry = {"filename": filename, "split": "test", "sentences": [{"raw": "a dog"}]}
        write_json(root / "dataset_coco.json", {"images": [entry]})
        (root / "link.jpg").symlink_to(root.parent / "secret.jpg")

    return write


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (
            lambda root: (root / "notes.md").write_text("x"),
            r"no evaluation set that we know; it holds notes.md; .*benchmarks.papers karpathy FOLDER",
        ),
        (lambda root: None, "it holds nothing; expected one of: Karpathy's dataset_coco.json"),
        (lambda root: (root / "dataset_coco.json").write_text("{"), "cannot be read as JSON"),
        (lambda root: write_json(root / "dataset_coco.json", [1]), "expected an object with a list 'images'"),
        (
            lambda root: write_json(root / "dataset_coco.json", {"images": [{"filename": 3, "split": "test"}]}),
            r"entry 0 of 'images' lacks \['filename', 'sentences'\]",
        ),
        (
            lambda root: write_json(root / "dataset_coco.json", {"images": []}),
            "has no split 'test'; it has none",
        ),
        (_karpathy_of("absent.jpg"), "no image to evaluate on: image_not_found 1; images are looked for in val2014/"),
        (_karpathy_of("../secret.jpg"), "image_path_refused 1; .* lead out of the folder are refused"),
        (_karpathy_of("link.jpg"), "image_path_refused 1"),
        (_karpathy_of("/etc/passwd"), "image_path_refused 1"),
        (lambda root: tar_of(root / "0.tar", {"a.txt": b"a dog"}), "missing_image 1; the tars hold none"),
        (lambda root: write_jpeg(root / "dog" / "1.jpg"), r"it holds dog; expected one of: Karpathy's"),
    ],
)
def test_what_is_wrong_with_a_set_is_said(tmp_path: Path, write: Callable[[Path], object], sentence: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    write(root)
    with pytest.raises(ValueError, match=sentence):
        read_evaluation_set(root)


def test_an_absent_folder_a_split_and_numbers_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing is downloaded: put one of these there: Karpathy's"):
        read_evaluation_set(tmp_path / "coco")
    write_karpathy_coco(tmp_path)
    with pytest.raises(ValueError, match="has no split 'val'; it has test, train"):
        read_evaluation_set(tmp_path, split="val")
    with pytest.raises(ValueError, match="--limit must be at least 1, got 0"):
        read_evaluation_set(tmp_path, limit=0)


def test_an_image_that_cannot_be_decoded_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(jpeg(0)[:200])
    tar = tar_of(tmp_path / "0.tar", {"a.jpg": jpeg(0)})

    def reason(path: Path | None, member: str | None, limits: ImageLimits) -> str:
        image = EvaluationImage("a", (), None if path is None else str(path), str(tar), member)
        with pytest.raises(ImageRejected) as rejected:
            load_image(image, limits)
        return rejected.value.reason

    assert reason(tmp_path / "broken.jpg", None, ImageLimits()) in ("truncated", "undecodable")
    assert reason(tmp_path / "absent.jpg", None, ImageLimits()) == "not_found"
    assert reason(None, "b.jpg", ImageLimits()) == "not_found"
    assert reason(None, "a.jpg", ImageLimits(max_bytes=100)) == "too_many_bytes"
    assert reason(None, "a.jpg", ImageLimits(max_pixels=100)) == "too_many_pixels"


def test_the_shared_photographs_are_an_evaluation_set() -> None:
    path = shared("photos/000005.tar")
    found = read_evaluation_set(path)
    assert (len(found.images), sum(len(image.captions) for image in found.images), found.left_out) == (500, 2500, {})
    assert load_image(found.images[-1]).mode == "RGB"
