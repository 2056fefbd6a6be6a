"""Layouts of evaluation sets that a checkout alone reads: each written as it is published, and as Karpathy's JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.papers.__main__ import app
from benchmarks.papers.layouts import read_any_set
from curation_assets.evaluation.sets.read_set import read_evaluation_set
from tests.support.evaluation_folders import write_coco_captions, write_jpeg, write_json, write_karpathy_coco

# -- COCO, NoCaps


def test_cocos_annotations_are_joined_by_image_in_the_order_of_the_file(tmp_path: Path) -> None:
    names = {4: "4.jpg", 2: "2.jpg", 3: "3.jpg"}
    write_coco_captions(tmp_path / "annotations" / "captions_val2017.json", names, 7)
    write_coco_captions(tmp_path / "annotations" / "captions_train2017.json", {5: "5.jpg"}, 1)
    for name in ("4.jpg", "2.jpg"):
        write_jpeg(tmp_path / "val2017" / name)
    write_jpeg(tmp_path / "images" / "train2017" / "5.jpg")
    found = read_any_set(tmp_path)
    assert (found.name, [image.image_id for image in found.images]) == ("coco_val2017", ["4", "2"])
    assert found.images[1].captions == tuple(f"caption {n} of 2" for n in range(5))
    assert found.left_out == {"caption_over_count": 4, "image_not_found": 1}
    train = read_any_set(tmp_path / "annotations" / "captions_train2017.json")
    assert [image.image_id for image in train.images] == ["5"]


def test_nocaps_keeps_its_domains_and_all_captions(tmp_path: Path) -> None:
    file = write_coco_captions(tmp_path / "nocaps_val_4500_captions.json", {0: "a.jpg", 1: "b.jpg"}, 10)
    content = json.loads(file.read_text())
    for entry, domain in zip(content["images"], ("in-domain", "out-domain"), strict=True):
        entry["domain"] = domain
    write_json(file, content)
    for name in ("a.jpg", "b.jpg"):
        write_jpeg(tmp_path / "images" / name)
    found = read_any_set(tmp_path)
    assert [(getattr(image, "domain", None), len(image.captions)) for image in found.images] == [
        ("in-domain", 10),
        ("out-domain", 10),
    ]
    assert [image.image_id for image in read_any_set(tmp_path, split="out-domain").images] == ["1"]


# -- Flickr's texts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results_20130124.token", "1.jpg#0\tA dog, running\n1.jpg#1\tA pet .\n2.jpg#0\tA cat\n"),
        ("captions.txt", 'image,caption\n1.jpg,"A dog, running"\n1.jpg,A pet .\n2.jpg,A cat\n'),
        ("captions.txt", "image,caption\n1.jpg,A dog, running\n1.jpg,A pet .\n2.jpg,A cat\n"),
        (
            "results.csv",
            "image_name| comment_number| comment\n1.jpg| 0| A dog, running\n1.jpg| 1| A pet .\n2.jpg| 0| A cat\n",
        ),
    ],
)
def test_flickrs_texts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    write_jpeg(tmp_path / "Images" / "1.jpg")
    write_jpeg(tmp_path / "Images" / "2.jpg")
    found = read_any_set(tmp_path)
    assert [(image.image_id, image.captions) for image in found.images] == [
        ("1", ("A dog, running", "A pet .")),
        ("2", ("A cat",)),
    ]
    (tmp_path / "Flickr_8k.testImages.txt").write_text("2.jpg\n3.jpg\n")
    test = read_any_set(tmp_path)
    assert ([image.image_id for image in test.images], test.left_out) == (["2"], {"no_caption": 1})


# -- tables and texts


def test_a_pools_folder_with_a_table_gathers_the_captions_of_an_image(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "a" / "1.jpg")
    write_jpeg(tmp_path / "b" / "2.jpg")
    rows = ["a/1.jpg,a dog,test", "b/2.jpg,a cat,test", "a/1.jpg,a pet,test", "b/3.jpg,a cow,test", "a/1.jpg,x,train"]
    (tmp_path / "captions.csv").write_text("file_name,caption,split\n" + "\n".join(rows) + "\n")
    found = read_any_set(tmp_path)
    assert found.layout == "image_table", "a table that names images goes before folders of classes"
    assert [(image.image_id, image.captions) for image in found.images] == [
        ("a/1.jpg", ("a dog", "a pet")),
        ("b/2.jpg", ("a cat",)),
    ]
    assert found.left_out == {"image_not_found": 1}


def test_texts_beside_images(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "1.jpg")
    write_jpeg(tmp_path / "2.jpg")
    (tmp_path / "1.txt").write_text("a dog\n")
    found = read_any_set(tmp_path)
    assert [(image.image_id, image.captions) for image in found.images] == [("1.jpg", ("a dog",))]
    assert (found.layout, found.left_out) == ("image_and_text", {"no_caption": 1})


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\r"])
def test_line_feeds_alone_end_a_caption_of_flickr(tmp_path: Path, mark: str) -> None:
    captions = (f"a dog{mark}that runs", f"a{mark}pet")
    write_jpeg(tmp_path / "1.jpg")
    lines = "".join(f"1.jpg#{number}\t{caption}\n" for number, caption in enumerate(captions))
    (tmp_path / "Flickr8k.token.txt").write_text(lines, encoding="utf-8", newline="")
    assert read_any_set(tmp_path).images[0].captions == captions


def test_the_file_that_is_given_is_read_of_several(tmp_path: Path) -> None:
    write_karpathy_coco(tmp_path)
    write_jpeg(tmp_path / "images" / "1.jpg")
    (tmp_path / "captions.txt").write_text("image,caption\n1.jpg,two cats\n")
    assert read_any_set(tmp_path).name == "coco_test", "Karpathy's JSON goes first"
    assert read_any_set(tmp_path / "captions.txt").images[0].captions == ("two cats",)


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda root: (root / "captions.txt").write_text("one caption a line\n"), "expected lines NAME#0<tab>CAPTION"),
        (lambda root: (root / "captions.txt").write_bytes(b"image,caption\n1.jpg,\xff\n"), "is not UTF-8"),
        (
            lambda root: [write_jpeg(root / "1.jpg"), (root / "x.csv").write_text("file_name,words\n1.jpg,a\n")],
            r"x.csv has the columns \['file_name', 'words'\]; expected one of .*'caption'.*: rename yours",
        ),
        (
            lambda root: [write_coco_captions(root / f"captions_{name}.json", {1: "1.jpg"}, 1) for name in "ab"],
            "captions of several splits: a, b; name one with --split",
        ),
        (lambda root: write_jpeg(root / "1.jpg"), r"it holds 1.jpg; expected one of: .*nocaps_val_4500[^`]*$"),
    ],
)
def test_what_is_wrong_with_a_set_is_said(tmp_path: Path, write: Callable[[Path], object], sentence: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    write(root)
    with pytest.raises(ValueError, match=sentence):
        read_any_set(root)


# -- Karpathy's JSON of them


@pytest.mark.parametrize("layout", ["coco", "nocaps", "flickr", "table"])
def test_a_set_as_karpathys_json_is_the_same_to_the_package(tmp_path: Path, layout: str) -> None:
    root = tmp_path / layout
    for name in ("1.jpg", "2.jpg"):
        write_jpeg(root / "images" / name)
    path = root
    if layout == "coco":
        write_coco_captions(root / "annotations" / "captions_val2017.json", {1: "1.jpg", 2: "2.jpg"}, 7)
    elif layout == "nocaps":
        path = write_coco_captions(root / "nocaps_val_4500_captions.json", {1: "1.jpg", 2: "2.jpg"}, 10).parent
    elif layout == "flickr":
        (root / "Flickr8k.token.txt").write_text("1.jpg#0\tA dog .\n2.jpg#0\tA cat\n2.jpg#1\tA pet\n")
    else:
        (root / "x.csv").write_text("file_name,caption\nimages/1.jpg,a dog\nimages/2.jpg,a cat\n")
    expected = read_any_set(path)
    result = CliRunner().invoke(app, ["karpathy", str(path)])
    assert result.exit_code == 0, result.output
    (made,) = root.glob("dataset_*.json")
    found = read_evaluation_set(root)
    assert [vars(image) for image in found.images] == [
        {name: value for name, value in vars(image).items() if name not in ("label", "domain")}
        for image in expected.images
    ]
    assert json.loads(made.read_text())["dataset"] == expected.name
    assert len(found.images[1].captions) == {"coco": 5, "nocaps": 10, "flickr": 2, "table": 1}[layout]
    again = CliRunner().invoke(app, ["karpathy", str(path)])
    assert again.exit_code == 1
    assert "layout karpathy" in " ".join(again.output.split())


def test_a_set_that_the_package_reads_needs_no_json(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_jpeg(tmp_path / name / "1.jpg")
    result = CliRunner().invoke(app, ["karpathy", str(tmp_path)])
    assert result.exit_code == 1
    assert "layout class_folders" in " ".join(result.output.split())
