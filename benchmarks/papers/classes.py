"""Evaluation sets whose images have labels in place of captions: ImageNet's folders, tars with KEY.cls.

The package reads sets of captions alone; these are for `python -m benchmarks.papers zero-shot`.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from curation_assets.evaluation.sets.images import EvaluationImage, EvaluationSet
from curation_assets.evaluation.sets.layouts import EVALUATED, ReadSet, chosen_split, read_json
from curation_assets.evaluation.sets.read_set import nothing_left
from curation_assets.sources import image_columns
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.image_files import image_names, locate
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import tar_index
from curation_assets.stores.tar_samples import members_by_key, text_of
from curation_assets.stores.text_format import table_suffix
from curation_assets.stores.text_tables import read_lines

#: Folders that hold a split, and are no class: val, val2014, test.
SPLIT_FOLDER = re.compile(r"(train|val|valid|validation|test|dev)(\d{4})?", re.IGNORECASE)
WNID = re.compile(r"n\d{8}")
TEMPLATES = ("zeroshot_classification_templates.txt", "templates.txt")


@dataclass(frozen=True)
class PaperImage(EvaluationImage):
    """One image, and what only the papers' measurements read of it."""

    label: int | None = None  # index into the set's class_names
    domain: str | None = None  # of NoCaps: in-domain, near-domain, out-domain


@dataclass(frozen=True)
class LabelledSet(EvaluationSet):
    """A set of labelled images (PaperImage). `templates` hold `{}` where the class name goes."""

    class_names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()


@dataclass
class ReadClasses(ReadSet):
    """What a reader of labelled images gives."""

    class_names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()


def label_of(image: EvaluationImage) -> int | None:
    """Its label, None of an image that has none."""
    return image.label if isinstance(image, PaperImage) else None


def labelled_set_of(read: ReadClasses, path: Path, limit: int | None) -> LabelledSet:
    """What was read of `path`, without doubled images and images without a label; `limit` by classes in turn."""
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}; leave it out for all")
    left_out = Counter(read.left_out)
    images: dict[str, EvaluationImage] = {}
    for image in read.images:
        if image.image_id in images:
            left_out["repeated_image_id"] += 1
        elif label_of(image) is None:
            left_out["no_label"] += 1
        else:
            captions = tuple(caption.strip() for caption in image.captions if caption.strip())
            images[image.image_id] = replace(image, captions=captions)
    if not images:
        raise ValueError(nothing_left(path, read, "label", left_out))
    kept = list(images.values())
    if limit is not None and len(kept) > limit:
        left_out["over_limit"] += len(kept) - limit
        kept = _limited(kept, limit)
    counts = {reason: count for reason, count in sorted(left_out.items()) if count}
    return LabelledSet(read.name, read.layout, tuple(kept), counts, read.class_names, read.templates)


def set_sha256(evaluation: EvaluationSet) -> str:
    """64 hex digits over names, captions, labels, classes and templates; not over pixels or where images lie."""
    images = [[image.image_id, list(image.captions), label_of(image)] for image in evaluation.images]
    names = {name: list(getattr(evaluation, name, ())) for name in ("class_names", "templates")}
    return config_sha256({"images": images, **names})


def _limited(images: list[EvaluationImage], limit: int) -> list[EvaluationImage]:
    """The first `limit` images, class by class in turn, so that few images still show many classes."""
    turn: Counter[int | None] = Counter()
    order = []
    for position, image in enumerate(images):
        order.append((turn[label_of(image)], position))
        turn[label_of(image)] += 1
    kept = sorted(position for _, position in sorted(order)[:limit])
    return [images[position] for position in kept]


# -- tars -------------------------------------------------------------------------------------------------------------


def with_labels(read: ReadSet, root: Path) -> ReadSet:
    """A set of tars with the labels of its KEY.cls; as it is where no image has one.

    Classes and templates lie in `root`, or of the tars of one split above it.
    """
    is_split = not (root / "classnames.txt").is_file() and (root.parent / "classnames.txt").is_file()
    root = root.parent if is_split else root
    files: dict[tuple[str | None, str | None], str] = {}
    for tar in sorted({str(image.tar) for image in read.images}):
        for sample in members_by_key(tar_index(Path(tar))).values():
            file = next((name for name in sample.others if name.lower().endswith(".cls")), None)
            if file is not None:
                files[tar, sample.image] = file
                read.left_out["missing_image"] += not any((sample.image, sample.text, sample.meta))
    if not files:
        return read
    images: list[EvaluationImage] = []
    for image in read.images:
        file = files.get((image.tar, image.member))
        label = None if file is None else _label(text_of(tar_index(Path(str(image.tar))), file)[0])
        if file is not None and label is None:
            read.left_out["label_unreadable"] += 1
        else:
            images.append(PaperImage(image.image_id, image.captions, None, image.tar, image.member, label))
    class_names = _class_list(root / "classnames.txt")
    _check_labels(images, class_names, root / "classnames.txt")
    return ReadClasses(
        read.name, read.layout, images, left_out=read.left_out, class_names=class_names, templates=read_templates(root)
    )


def _label(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\s*\d{1,9}\s*", text) else None


def _check_labels(images: Sequence[EvaluationImage], class_names: Sequence[str], path: Path) -> None:
    """A list of classes that is too short would name every class wrongly. Raises ValueError."""
    highest = max((label for image in images if (label := label_of(image)) is not None), default=-1)
    if not class_names:
        raise ValueError(f"the tars hold labels and {path} is absent; write one class name a line, in order of labels")
    if highest >= len(class_names):
        raise ValueError(f"{path} names {len(class_names)} classes, and label {highest} occurs: it is another set's")
    _check_doubled(class_names, highest, path)


def _check_doubled(class_names: Sequence[str], highest: int, path: Path) -> None:
    """A name on two lines is one of two classes (ImageNet's list has some), or shifts all that follow: the number of
    labels tells. Raises ValueError."""
    doubled = [name for name, count in Counter(class_names).items() if count > 1]
    if doubled and len(class_names) != highest + 1:
        lines = [number for number, name in enumerate(class_names, start=1) if name == doubled[0]]
        raise ValueError(
            f"{path} has {doubled[0]!r} on lines {' and '.join(map(str, lines))}, and {len(class_names)} lines for the "
            f"labels 0 to {highest}: expected one line per label"
        )


# -- folders of classes -----------------------------------------------------------------------------------------------


def read_class_folders(root: Path, split: str | None) -> ReadClasses | None:
    """ImageNet's folders: one per class, at the top or below a folder per split. Labels count them in sorted order;
    where all are named by numbers and a list names the classes, the numbers are the labels, from 0.

    Class names: classnames.txt (one a line, in that order), LOC_synset_mapping.txt, words.txt or
    imagenet_class_index.json (WordNet id, or number → name), else the names of the folders.
    """
    if _table_names_images(root):
        return None
    splits = {name: root / name for name in _folders(root) if SPLIT_FOLDER.fullmatch(name)}
    splits = {name: folder for name, folder in splits.items() if _class_folders(folder)}
    base, chosen = root, None
    if split is not None or (splits and not _class_folders(root)):
        default = next((name for known in EVALUATED for name in splits if name.lower().startswith(known)), "val")
        if not splits:
            return None
        chosen = chosen_split(split, splits, default, root)
        base = splits[chosen]
    classes = _class_folders(base)
    if not classes:
        return None
    labels, class_names = _labels(classes, (base, root))
    left_out: Counter[str] = Counter()
    images = []
    for label, name in zip(labels, classes, strict=True):
        for file in image_names(base / name):
            path, reason = locate(root, (base / name / file).relative_to(root).as_posix())
            if path is None:
                left_out[str(reason)] += 1
                continue
            image_id = f"{name}/{file}"
            images.append(PaperImage(image_id, (), str(path.absolute()), None, None, label))
    templates = read_templates(base) or read_templates(root)
    name = root.name if chosen is None else f"{root.name}_{chosen}"
    return ReadClasses(
        name, "class_folders", images, (base.name,), left_out=left_out, class_names=class_names, templates=templates
    )


def _table_names_images(root: Path) -> bool:
    """Whether a table names the images: then it says what they are, not the folders."""
    try:
        return any(table_suffix(path) for path in root.iterdir()) and (image_columns.detect_images(root) is not None)
    except ValueError:
        return False


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _class_folders(folder: Path) -> list[str]:
    """Folders of images, at least two, that are no splits and have no texts beside the images; else empty."""
    first = {name: _first_image(folder / name) for name in _folders(folder) if not SPLIT_FOLDER.fullmatch(name)}
    images = [image for image in first.values() if image is not None]
    if len(images) < 2 or any(image.with_suffix(".txt").is_file() for image in images):
        return []
    return [name for name, image in first.items() if image is not None]


def _first_image(folder: Path) -> Path | None:
    """Any image directly in a folder; ImageNet's training folders hold a million, so they are not all listed."""
    with os.scandir(folder) as entries:
        names = (entry.name for entry in entries if not entry.name.startswith("."))
        return next((folder / name for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES), None)


def _name_lines(path: Path) -> list[str]:
    return [line.strip() for line in read_lines(path) if line.strip()] if path.is_file() else []


def _class_list(path: Path) -> tuple[str, ...]:
    """The lines of a list of class names; none without a file. Raises ValueError for a blank one: what follows would be
    named wrongly without it."""
    lines = [line.strip() for line in read_lines(path)] if path.is_file() else []
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        raise ValueError(f"{path}, line {lines.index('') + 1} is blank: expected the name of a class on every line")
    return tuple(lines)


def _labels(classes: Sequence[str], places: Sequence[Path]) -> tuple[list[int], tuple[str, ...]]:
    """(label of each class folder, name of each label). Raises ValueError for WordNet ids without a list of names, and
    for a list that does not fit."""
    in_order = list(range(len(classes)))
    is_numbered = all(re.fullmatch(r"[0-9]{1,6}", name) for name in classes)
    for place in places:
        path, lines = place / "classnames.txt", _class_list(place / "classnames.txt")
        if lines and is_numbered:
            return _numbered(classes, lines, path), lines
        if lines and len(lines) != len(classes):
            raise ValueError(
                f"{path} names {len(lines)} classes, and there are {len(classes)} folders of "
                "classes: expected one name a line, in the sorted order of the folders"
            )
        if lines:
            return in_order, lines
    for place in places:
        names = _listed_classes(place, is_numbered=is_numbered)
        if names:
            keys = [str(int(name)) if is_numbered else name for name in classes]
            unnamed = [name for name, key in zip(classes, keys, strict=True) if key not in names]
            if unnamed:
                raise ValueError(f"{place}: the list of classes does not name {unnamed[:5]} ({len(unnamed)} lack)")
            return in_order, tuple(names[key] for key in keys)
    if any(WNID.fullmatch(name) for name in classes):
        raise ValueError(
            f"{places[0]}: the folders are WordNet ids such as {classes[0]}, which no text encoder understands; put "
            "classnames.txt (one name a line, in the sorted order of the folders), LOC_synset_mapping.txt or "
            "imagenet_class_index.json beside them"
        )
    return in_order, tuple(name.replace("_", " ") for name in classes)


def _numbered(classes: Sequence[str], class_names: Sequence[str], path: Path) -> list[int]:
    """Folders named by numbers: 10 comes before 2 in sorted order, and line 11 of the list is its name."""
    labels = [int(name) for name in classes]
    if len(set(labels)) < len(labels) or max(labels) >= len(class_names):
        raise ValueError(
            f"{path} names {len(class_names)} classes, and the folders are the numbers {min(labels)} to {max(labels)}: "
            "expected numbers that count the lines from 0, each once; rename the folders, or name them by their classes"
        )
    _check_doubled(class_names, max(labels), path)
    return labels


def _listed_classes(place: Path, *, is_numbered: bool) -> dict[str, str]:
    """WordNet id, or number (`is_numbered`) → first name, of the lists that come with ImageNet; empty without one."""
    index = place / "imagenet_class_index.json"
    if index.is_file():
        content = read_json(index)
        pairs = list(content.values()) if isinstance(content, dict) else []
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f'{index}: expected {{"0": ["n01440764", "tench"], …}}')
        named = {str(key): [str(cell) for cell in pair] for key, pair in content.items()}
        return {number if is_numbered else wnid: name.replace("_", " ") for number, (wnid, name) in named.items()}
    names = {}
    for file in ("LOC_synset_mapping.txt", "words.txt"):
        for line in _name_lines(place / file):
            wnid, _, rest = line.replace("\t", " ").partition(" ")
            if WNID.fullmatch(wnid) and rest.strip():
                names[wnid] = rest.partition(",")[0].strip()
    return names


def read_templates(folder: Path) -> tuple[str, ...]:
    """Templates of a classification set with `{}` for the class name; empty without a file. Raises ValueError."""
    path = next((folder / name for name in TEMPLATES if (folder / name).is_file()), None)
    if path is None:
        return ()
    lines = [line.replace("{c}", "{}") for line in _name_lines(path)]
    wrong = [line for line in lines if line.count("{}") != 1]
    if wrong:
        raise ValueError(f"{path}: expected {{}} or {{c}} once in every template, got {wrong[0]!r}")
    return tuple(lines)
