"""The layouts of evaluation sets, each recognised by the files that lie there and read as it is published.

A reader takes a folder and a split and gives every image of it, or None where the folder is of another layout.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from curation_assets.evaluation.sets.images import EvaluationImage
from curation_assets.stores.caption_files import karpathy_splits
from curation_assets.stores.image_files import NOT_FOUND, locate
from curation_assets.stores.images import tar_index
from curation_assets.stores.tar_samples import find_tars, json_of, members_by_key, sample_keys, text_of

MAX_JSON_BYTES = 2**30  # dataset_coco.json has 144 MB
EVALUATED = ("test", "val", "valid", "validation", "dev")  # splits in the order in which one is chosen
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
    images: Sequence[EvaluationImage]
    looked_in: Sequence[str] = ()  # folders of images, for the error where none lies there
    captions_per_image: int | None = None  # by convention of this set; None: all
    left_out: Counter[str] = field(default_factory=Counter)


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
    """Webdataset tars, in the folder or in one per split: KEY.jpg with KEY.txt (and KEY.json).

    img2dataset's KEY.txt is one caption, and `captions` of its KEY.json a list; without a KEY.json each line of KEY.txt
    is a caption, as CLIP_benchmark writes them.
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
    """The samples of these tars."""
    left_out: Counter[str] = Counter()
    read = [image for tar in tars for image in _tar_images(root, tar, left_out)]
    if len(tars) > 1 and len({image.image_id for image in read}) < len(read):  # keys that begin anew in each tar
        read = [replace(image, image_id=f"{Path(str(image.tar)).stem}/{image.image_id}") for image in read]
    return ReadSet(name, "webdataset", read, left_out=left_out)


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
        if sample.image is None:
            # a file that is no sample at all, such as a README, is no missing image
            left_out["missing_image"] += any((sample.text, sample.meta))
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
        yield EvaluationImage(key, captions, None, str(tar.absolute()), sample.image)


#: In the order in which they are tried → what is looked for, for people.
LAYOUTS: Mapping[Reader, str] = {
    read_karpathy: "Karpathy's dataset_coco.json, dataset_flickr30k.json or dataset_flickr8k.json with the images",
    read_tars: "webdataset tars (KEY.jpg with KEY.txt or KEY.json), here or in a folder per split",
}
