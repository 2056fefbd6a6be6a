"""Evaluation sets of labelled images: folders of classes and tars, their class names and templates."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.papers.classes import LabelledSet, label_of, set_sha256
from benchmarks.papers.layouts import read_any_set
from tests.support.evaluation_folders import jpeg, write_jpeg, write_karpathy_coco
from tests.support.tars import tar_of


def read(path: Path, split: str | None = None, limit: int | None = None) -> LabelledSet:
    found = read_any_set(path, split=split, limit=limit)
    assert isinstance(found, LabelledSet)
    return found


def test_as_many_captions_of_an_image_as_one_wants(tmp_path: Path) -> None:
    write_karpathy_coco(tmp_path)
    everything = read_any_set(tmp_path, captions_per_image=100)
    assert sum(len(image.captions) for image in everything.images) == 11
    with pytest.raises(ValueError, match="--captions-per-image must be at least 1, got 0"):
        read_any_set(tmp_path, captions_per_image=0)


def test_folders_of_classes_take_names_from_the_folders_or_a_list(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "tabby_cat" / "1.JPEG", 1)
    write_jpeg(tmp_path / "tabby_cat" / "2.JPEG", 2)
    write_jpeg(tmp_path / "dog" / "1.JPEG", 3)
    found = read(tmp_path)
    assert found.layout == "class_folders"
    assert found.class_names == ("dog", "tabby cat")
    assert [(image.image_id, label_of(image)) for image in found.images] == [
        ("dog/1.JPEG", 0),
        ("tabby_cat/1.JPEG", 1),
        ("tabby_cat/2.JPEG", 1),
    ]
    assert [label_of(image) for image in read(tmp_path, limit=2).images] == [0, 1], "classes in turn"
    (tmp_path / "classnames.txt").write_text("hound\ncat\n")
    (tmp_path / "templates.txt").write_text("a photo of a {c}.\na drawing of a {}.\n")
    named = read(tmp_path)
    assert named.class_names == ("hound", "cat")
    assert named.templates == ("a photo of a {}.", "a drawing of a {}.")
    assert set_sha256(named) != set_sha256(found)


NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


@pytest.mark.parametrize("width", [1, 3])
def test_folders_named_by_numbers_are_indices_of_the_list(tmp_path: Path, width: int) -> None:
    """In the order of texts 10 and 11 come before 2: names by position gave nine of twelve classes another's name."""
    there = [number for number in range(12) if number != 5]  # a class of which the split has no image
    for number in there:
        write_jpeg(tmp_path / f"{number:0{width}d}" / "1.jpg", number)
    index = {number: [f"n{number:08d}", name] for number, name in enumerate(NAMES)}
    for file, text in (("imagenet_class_index.json", json.dumps(index)), ("classnames.txt", "\n".join(NAMES) + "\n\n")):
        (tmp_path / file).write_text(text)
        found = read(tmp_path)
        named = [
            (int(image.image_id.partition("/")[0]), found.class_names[label_of(image) or 0]) for image in found.images
        ]
        assert sorted(named) == [(number, NAMES[number]) for number in there]
    assert len(found.class_names) == 12
    write_jpeg(tmp_path / "12" / "1.jpg")
    with pytest.raises(ValueError, match="names 12 classes, and the folders are the numbers 0 to 12: expected numbers"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["numbers", "folders", "tars"])
def test_a_list_of_class_names_keeps_its_lines_or_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "tars":
        files = {f"s{n}.{end}": data for n in range(4) for end, data in (("jpg", jpeg(n)), ("cls", b"%d" % n))}
        tar_of(tmp_path / "0.tar", files)
    else:
        for number, name in enumerate("abcd"):
            write_jpeg(tmp_path / (str(number) if kind == "numbers" else name) / "1.jpg", number)
    path = tmp_path / "classnames.txt"
    path.write_text("missile\nkite\nmissile\ndog\n\n")
    assert read(tmp_path).class_names == ("missile", "kite", "missile", "dog")  # as ImageNet's 657, 744
    path.write_text("missile\n\nkite\nboat\ndog\n")
    with pytest.raises(ValueError, match=r"classnames.txt, line 2 is blank"):
        read(tmp_path)
    path.write_text("missile\nkite\nkite\nboat\ndog\n")
    sentence = "names 5 classes, and there are 4" if kind == "folders" else "'kite' on lines 2 and 3, and 5 lines for"
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classnames.txt", "tench\ngoldfish\n"),
        ("LOC_synset_mapping.txt", "n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\n"),
        ("words.txt", "n01440764\ttench, Tinca tinca\nn01443537\tgoldfish\n"),
        ("imagenet_class_index.json", '{"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}'),
    ],
)
def test_wordnet_ids_are_named_by_the_lists_of_imagenet(tmp_path: Path, name: str, text: str) -> None:
    for split in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            write_jpeg(tmp_path / split / wnid / f"{wnid}_1.JPEG")
    with pytest.raises(ValueError, match=r"folders are WordNet ids such as n01440764.*put classnames.txt"):
        read(tmp_path)
    (tmp_path / name).write_text(text)
    found = read(tmp_path)
    assert (found.name, found.class_names) == (f"{tmp_path.name}_val", ("tench", "goldfish"))
    assert len(read(tmp_path, split="train").images) == 2


def test_tars_of_clip_benchmark_have_classes(tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    files = {"s0.webp": jpeg(0), "s0.cls": b"1", "s1.jpg": jpeg(1), "s1.cls": b"0\n", "s2.jpg": jpeg(2), "s2.cls": b"x"}
    tar_of(classes / "test" / "0.tar", files | {"s3.jpg": jpeg(3)})
    with pytest.raises(ValueError, match=r"hold labels and .*classnames.txt is absent"):
        read(classes)
    (classes / "classnames.txt").write_text("airplane\n")
    with pytest.raises(ValueError, match="names 1 classes, and label 1 occurs"):
        read(classes)
    (classes / "classnames.txt").write_text("airplane\nautomobile\n")
    (classes / "zeroshot_classification_templates.txt").write_text("a blurry photo of a {c}.\n")
    labelled = read(classes)
    assert [(image.image_id, label_of(image)) for image in labelled.images] == [("s0", 1), ("s1", 0)]
    assert labelled.templates == ("a blurry photo of a {}.",)
    assert labelled.left_out == {"label_unreadable": 1, "no_label": 1}
    assert read(classes / "test" / "0.tar").class_names == ("airplane", "automobile")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda root: write_jpeg(root / "dog" / "1.jpg"), r"it holds dog; expected one of: .*folders, CLASS/\*.jpg"),
        (
            lambda root: [
                write_jpeg(root / "a" / "1.jpg"),
                write_jpeg(root / "b" / "1.jpg"),
                (root / "classnames.txt").write_text("a\nb\nc\n"),
            ],
            "names 3 classes, and there are 2 folders",
        ),
        (
            lambda root: [
                write_jpeg(root / "a" / "1.jpg"),
                write_jpeg(root / "b" / "1.jpg"),
                (root / "templates.txt").write_text("a photo\n"),
            ],
            r"expected \{\} or \{c\} once in every template, got 'a photo'",
        ),
    ],
)
def test_what_is_wrong_with_classes_is_said(tmp_path: Path, write: Callable[[Path], object], sentence: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    write(root)
    with pytest.raises(ValueError, match=sentence):
        read_any_set(root)
