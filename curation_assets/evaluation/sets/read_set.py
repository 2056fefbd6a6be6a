"""Standard evaluation sets, recognised by the files that lie there; nothing is downloaded."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from curation_assets.core.errors import few
from curation_assets.evaluation.sets.images import EvaluationImage, EvaluationSet, load_image
from curation_assets.evaluation.sets.layouts import (
    LAYOUTS,
    Reader,
    ReadSet,
    read_karpathy,
    tar_set,
)
from curation_assets.stores.image_files import PATH_REFUSED

__all__ = ["EvaluationImage", "EvaluationSet", "load_image", "read_evaluation_set"]

LISTED = 8  # names of what lies in a folder, in an error
#: How the other published layouts become one of these.
ELSEWHERE = (
    ". `python -m benchmarks.papers karpathy FOLDER`, from a checkout, writes Karpathy's JSON of COCO's annotations, "
    "NoCaps, Flickr's texts or a table of images and captions (docs/user/papers.md)"
)


def read_evaluation_set(path: Path, *, split: str | None = None, limit: int | None = None) -> EvaluationSet:
    """The images of an evaluation set with their captions, in the order of the published file.

    `path`: its folder, or the file in it that holds captions (dataset_coco.json, a tar). `split`: default test, else
    val. `limit`: at most so many images, the first ones. Of COCO and Flickr five captions an image (formulas.md §11).
    Images are not decoded here; `load_image` does.
    Raises FileNotFoundError where nothing lies at `path`, ValueError for a layout that is not known, a split that is
    absent, damaged files, or a set of which no image lies there.
    """
    return evaluation_set_of(read_layout(path, split, LAYOUTS), path, limit)


def evaluation_set_of(read: ReadSet, path: Path, limit: int | None) -> EvaluationSet:
    """What was read of `path`, without blank captions, doubled images and images without a caption."""
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}; leave it out for all")
    most = read.captions_per_image
    left_out = Counter(read.left_out)
    images: list[EvaluationImage] = []
    ids: set[str] = set()
    for image in read.images:
        captions = tuple(caption.strip() for caption in image.captions if caption.strip())
        left_out["caption_blank"] += len(image.captions) - len(captions)
        if image.image_id in ids:
            left_out["repeated_image_id"] += 1
        elif not captions:
            left_out["no_caption"] += 1
        else:
            ids.add(image.image_id)
            left_out["caption_over_count"] += max(0, len(captions) - (most or len(captions)))
            images.append(replace(image, captions=captions[:most]))
    if not images:
        raise ValueError(nothing_left(path, read, "caption", left_out))
    if limit is not None:
        left_out["over_limit"] += max(0, len(images) - limit)
    counts = {reason: count for reason, count in sorted(left_out.items()) if count}
    return EvaluationSet(read.name, read.layout, tuple(images[:limit]), counts)


def read_layout(path: Path, split: str | None, layouts: Mapping[Reader, str]) -> ReadSet:
    """What the first of `layouts` that fits gives. Raises as `read_evaluation_set`."""
    path = path.absolute()
    if not path.exists():
        raise FileNotFoundError(
            f"no evaluation set at {path}; nothing is downloaded: put one of these there: {'; '.join(layouts.values())}"
        )
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".tar" and path.is_file():
        return tar_set(folder, [path], path.stem)
    if path.is_file() and folder.name == "annotations":
        folder = folder.parent
    if path.is_file() and fnmatch(path.name, "dataset*.json"):
        read = read_karpathy(folder, split, path)
        assert read is not None, "a reader that is given its own file knows the layout"
        return read
    for reader in layouts:
        read = reader(folder, split)
        if read is not None:
            return read
    there = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    raise ValueError(
        f"{folder} is no evaluation set that we know; it holds {few(there, LISTED) or 'nothing'}; "
        f"expected one of: {'; '.join(layouts.values())}{'' if len(layouts) > len(LAYOUTS) else ELSEWHERE}"
    )


def nothing_left(path: Path, read: ReadSet, needed: str, left_out: Counter[str]) -> str:
    """Why a set has no image to measure on; `needed`: what every image must have."""
    counted = ", ".join(f"{reason} {count:,}" for reason, count in sorted(left_out.items()) if count)
    looked_in = ", ".join(f"{folder}/" for folder in read.looked_in if folder)
    cure = f"images are looked for in {looked_in} and the folder itself" if looked_in else "the tars hold none"
    if left_out[PATH_REFUSED]:
        cure += (
            "; names and links that lead out of the folder are refused: copy the images, or give the folder they are in"
        )
    if read.images:
        cure = f"every image needs a {needed}"
    return f"{path}: {read.name} ({read.layout}) has no image to evaluate on: {counted or 'no image'}; {cure}"
