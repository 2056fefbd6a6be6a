"""The layouts of evaluation sets, each recognised by the files that lie there and read as it is published.

A reader takes a folder and a split and gives every image of it, or None where the folder is of another layout.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curation_assets.evaluation.sets.images import EvaluationImage
from curation_assets.sources import image_columns
from curation_assets.stores.caption_files import karpathy_splits
from curation_assets.stores.image_files import NOT_FOUND, image_names, locate
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import tar_index
from curation_assets.stores.tar_samples import find_tars, json_of, members_by_key, sample_keys, text_of
from curation_assets.stores.text_format import table_suffix
from curation_assets.stores.text_tables import read_lines

MAX_JSON_BYTES = 2**30  # dataset_coco.json has 144 MB
#: Folders that hold a split, and are no class: val, val2014, test.
SPLIT_FOLDER = re.compile(r"(train|val|valid|validation|test|dev)(\d{4})?", re.IGNORECASE)
EVALUATED = ("test", "val", "valid", "validation", "dev")  # splits in the order in which one is chosen
WNID = re.compile(r"n\d{8}")
TEMPLATES = ("zeroshot_classification_templates.txt", "templates.txt")
#: Karpathy's sets, of which the first five captions of an image count (formulas.md §11).
PUBLISHED = ("coco", "flickr30k", "flickr8k", "dataset")
CAPTIONS_PER_IMAGE = 5
FLICKR_FOLDERS = (
    "images", "Images", "flickr30k-images", "flickr30k_images", "flickr30k_images/flickr30k_images",
    "Flicker8k_Dataset", "Flickr8k_Dataset", "",
)  # fmt: skip


@dataclass
class ReadSet:
    """What a reader gives: all images of the split that lie there, in the order of the published file."""

    name: str
    layout: str
    images: list[EvaluationImage]
    looked_in: Sequence[str] = ()  # folders of images, for the error where none lies there
    captions_per_image: int | None = None  # by convention of this set; None: all
    class_names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    is_labelled: bool = False  # images need a label; else a caption


Reader = Callable[[Path, str | None], ReadSet | None]


# -- files and folders ------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; at most {MAX_JSON_BYTES:,} are read")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}; download it again") from error


def entries_of(content: Any, key: str, path: Path, needed: Mapping[str, tuple[type, ...]]) -> list[dict[str, Any]]:
    """The list of objects `content[key]`, each with the `needed` fields of these types. Raises ValueError."""
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected an object with a list {key!r}; is this the file of captions?")
    for position, entry in enumerate(entries):
        lacking = [
            name
            for name, types in needed.items()
            if not isinstance(entry, dict) or not isinstance(entry.get(name), types)
        ]
        if lacking:
            raise ValueError(f"{path}: entry {position} of {key!r} lacks {lacking} or has them in another type")
    return entries


def first_file(folder: Path, patterns: Iterable[str]) -> Path | None:
    """The first file that fits, pattern by pattern, names sorted; links out of the folder are passed over."""
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            if locate(folder, path.relative_to(folder).as_posix())[0] is not None:
                return path
    return None


class Finder:
    """Looks images up by name below the folders that may hold them."""

    def __init__(self, root: Path, folders: Iterable[str]) -> None:
        self.root = root
        self.looked_in = tuple(dict.fromkeys(folders))
        self._there = [folder for folder in self.looked_in if (root / folder).is_dir()]
        self.left_out: Counter[str] = Counter()

    def find(self, name: str) -> str | None:
        """Absolute path; None, counted with its reason, where no folder holds it or the name leads out of the root."""
        reason = NOT_FOUND
        for folder in self._there:
            path, reason_here = locate(self.root, f"{folder}/{name}" if folder else name)
            if path is not None:
                return str(path.absolute())
            reason = reason if reason_here == NOT_FOUND else str(reason_here)
        self.left_out[reason] += 1
        return None


def chosen_split(split: str | None, there: Iterable[str], default: str, path: Path) -> str:
    """`split`, or the default. Raises ValueError where it is not among those there."""
    names = sorted(set(there))
    chosen = split or default
    if chosen not in names:
        raise ValueError(f"{path} has no split {chosen!r}; it has {', '.join(names) or 'none'}: name one with --split")
    return chosen


# -- JSON of captions -------------------------------------------------------------------------------------------------


def read_karpathy(root: Path, split: str | None, given: Path | None = None) -> ReadSet | None:
    """Karpathy's `dataset_coco.json`, `dataset_flickr30k.json`, `dataset_flickr8k.json`, with the images.

    His archive holds all three: `given` decides. COCO's split train is his train and restval. Raises ValueError where
    several lie there and none of them is given.
    """
    patterns = ("dataset_*.json", "dataset.json", "annotations/dataset_*.json", "*/dataset_*.json")
    path = given or first_file(root, patterns)
    if path is None:
        return None
    beside = sorted(other.name for other in path.parent.glob("dataset_*.json"))
    if given is None and len(beside) > 1:
        raise ValueError(f"{path.parent} holds {', '.join(beside)}; give one of these files instead of the folder")
    content = read_json(path)
    needed = {"filename": (str,), "split": (str,), "sentences": (list,)}
    entries = entries_of(content, "images", path, needed)
    chosen = chosen_split(split, (entry["split"] for entry in entries), "test", path)
    finder = Finder(root, ("", "images", "train2014", "val2014", *FLICKR_FOLDERS))
    images = []
    for entry in (entry for entry in entries if entry["split"] in karpathy_splits(chosen)):
        name = entry["filename"]
        folder = entry.get("filepath")
        file = finder.find(f"{folder}/{name}" if isinstance(folder, str) and folder else name)
        if file is not None:
            texts = [text.get("raw") for text in entry["sentences"] if isinstance(text, dict)]
            captions = tuple(text for text in texts if isinstance(text, str))
            image_id = str(entry.get("cocoid", Path(name).stem))
            images.append(EvaluationImage(image_id, captions, file, None, None))
    stated = content.get("dataset")
    name = stated if isinstance(stated, str) else path.stem.removeprefix("dataset_")
    looked_in = ("val2014", "train2014", *finder.looked_in)
    per_image = CAPTIONS_PER_IMAGE if name in PUBLISHED else None
    return ReadSet(f"{name}_{chosen}", "karpathy", images, looked_in, per_image, left_out=finder.left_out)


# -- tars -------------------------------------------------------------------------------------------------------------


def read_tars(root: Path, split: str | None) -> ReadSet | None:
    """Webdataset tars, in the folder or in one per split: KEY.jpg with KEY.txt (and KEY.json), or with KEY.cls.

    img2dataset's KEY.txt is one caption, and `captions` of its KEY.json a list; without a KEY.json each line of KEY.txt
    is a caption, as CLIP_benchmark writes them. Classes: classnames.txt, zeroshot_classification_templates.txt.
    """
    by_split = {
        folder.name: tars for folder in sorted(root.iterdir()) if folder.is_dir() and (tars := find_tars(folder))
    }
    tars = find_tars(root)
    if not tars and not by_split:
        return None
    chosen = None
    if split is not None or not tars:
        default = next((name for name in EVALUATED if name in by_split), next(iter(by_split), "test"))
        chosen = chosen_split(split, by_split, default, root)
        tars = by_split[chosen]
    return tar_set(root, tars, root.name if chosen is None else f"{root.name}_{chosen}")


def tar_set(root: Path, tars: Sequence[Path], name: str) -> ReadSet:
    """The samples of these tars, with the lists of classes and templates of `root`."""
    left_out: Counter[str] = Counter()
    read = [image for tar in tars for image in _tar_images(root, tar, left_out)]
    if len(tars) > 1 and len({image.image_id for image in read}) < len(read):  # keys that begin anew in each tar
        read = [_renamed(image, f"{Path(str(image.tar)).stem}/{image.image_id}") for image in read]
    class_names = _class_list(root / "classnames.txt")
    is_labelled = any(image.label is not None for image in read)
    if is_labelled:
        _check_labels(read, class_names, root / "classnames.txt")
    return ReadSet(
        name, "webdataset", read, class_names=class_names, templates=read_templates(root), left_out=left_out,
        is_labelled=is_labelled,
    )  # fmt: skip


def _renamed(image: EvaluationImage, image_id: str) -> EvaluationImage:
    return EvaluationImage(image_id, image.captions, None, image.tar, image.member, image.label)


def _tar_images(root: Path, tar: Path, left_out: Counter[str]) -> Iterator[EvaluationImage]:
    if locate(root, tar.relative_to(root).as_posix())[0] is None:
        left_out["tar_path_refused"] += 1
        return
    index = tar_index(tar)
    if index.damage is not None:
        left_out["tar_damaged"] += 1
    samples = members_by_key(index)
    left_out["missing_in_tar"] += len(set(sample_keys(tar)) - set(samples))  # that img2dataset's table lists
    tar_bytes = tar.stat().st_size
    for key, sample in samples.items():
        label_file = next((name for name in sample.others if name.lower().endswith(".cls")), None)
        if sample.image is None:
            # a file that is no sample at all, such as a README, is no missing image
            left_out["missing_image"] += any((sample.text, sample.meta, label_file))
            continue
        member = index.members[sample.image]
        if member.offset + member.size > tar_bytes:
            left_out["image_truncated"] += 1
            continue
        captions: tuple[str, ...] = ()
        listed = json_of(index, sample.meta)[0].get("captions")
        text, reason = text_of(index, sample.text)
        if isinstance(listed, list) and listed:
            captions = tuple(caption for caption in listed if isinstance(caption, str))
        elif text is not None:
            # no other character ends a line: U+2028 and form feeds stand inside of captions
            lines = text.split("\n") if sample.meta is None else [text]
            captions = tuple(line.removesuffix("\r") for line in lines)
        elif reason not in (None, "missing_txt"):
            left_out[f"caption_{reason}"] += 1
        label = None
        if label_file is not None:
            label = _label(text_of(index, label_file)[0])
            if label is None:
                left_out["label_unreadable"] += 1
                continue
        yield EvaluationImage(key, captions, None, str(tar.absolute()), sample.image, label)


def _label(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\s*\d{1,9}\s*", text) else None


def _check_labels(images: Sequence[EvaluationImage], class_names: Sequence[str], path: Path) -> None:
    """A list of classes that is too short would name every class wrongly. Raises ValueError."""
    highest = max(image.label for image in images if image.label is not None)
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


def read_class_folders(root: Path, split: str | None) -> ReadSet | None:
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
            images.append(EvaluationImage(image_id, (), str(path.absolute()), None, None, label))
    templates = read_templates(base) or read_templates(root)
    name = root.name if chosen is None else f"{root.name}_{chosen}"
    return ReadSet(
        name, "class_folders", images, (base.name,), class_names=class_names, templates=templates, left_out=left_out,
        is_labelled=True,
    )  # fmt: skip


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


#: In the order in which they are tried → what is looked for, for people.
LAYOUTS: Mapping[Reader, str] = {
    read_karpathy: "Karpathy's dataset_coco.json, dataset_flickr30k.json or dataset_flickr8k.json with the images",
    read_tars: "webdataset tars (KEY.jpg with KEY.txt, KEY.json or KEY.cls), here or in a folder per split",
    read_class_folders: "ImageNet's folders, CLASS/*.jpg, here or in a folder per split",
}
