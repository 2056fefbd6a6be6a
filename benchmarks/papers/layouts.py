"""More layouts of evaluation sets than the package reads: COCO's annotations, NoCaps, Flickr's texts, tables.

`read_any_set` reads all; `karpathy_of` writes one as Karpathy's JSON, which the package reads (option
`evaluation_set`).
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.papers.classes import PaperImage, ReadClasses, labelled_set_of, read_class_folders, with_labels
from curation_assets.evaluation.sets.images import EvaluationImage, EvaluationSet
from curation_assets.evaluation.sets.layouts import (
    CAPTIONS_PER_IMAGE,
    EVALUATED,
    FLICKR_FOLDERS,
    LAYOUTS,
    Finder,
    Reader,
    ReadSet,
    chosen_split,
    entries_of,
    first_file,
    read_json,
    read_karpathy,
    read_tars,
)
from curation_assets.evaluation.sets.read_set import evaluation_set_of, read_layout
from curation_assets.sources import image_columns
from curation_assets.stores.damaged_tables import schema_of
from curation_assets.stores.image_files import image_names, locate
from curation_assets.stores.text_format import table_suffix
from curation_assets.stores.text_tables import each_line, read_lines, read_rows

TOKEN_FILES = (
    "results_20130124.token", "Flickr30k.token.txt", "Flickr8k.token.txt", "results.csv", "captions.txt"
)  # fmt: skip


def read_nocaps(root: Path, split: str | None) -> ReadSet | None:
    """NoCaps: `nocaps_val_4500_captions.json` with the images; a split is one of its domains. All ten captions."""
    path = first_file(root, ("nocaps_*captions*.json", "annotations/nocaps_*captions*.json"))
    if path is None:
        return None
    images, finder = _coco_images(root, path, ("images", "val", "validation", "nocaps", "images/val", ""))
    if split is not None:
        domain = chosen_split(split, (str(image.domain) for image in images), split, path)
        images = [image for image in images if image.domain == domain]
    name = "nocaps_val" if split is None else f"nocaps_{split}"
    return ReadSet(name, "nocaps", images, finder.looked_in, left_out=finder.left_out)


def read_coco(root: Path, split: str | None) -> ReadSet | None:
    """COCO: `annotations/captions_val2017.json` with the folder val2017; a split is the end of the file's name."""
    files = {
        path.stem.removeprefix("captions_"): path
        for folder in ("annotations", "")
        for path in sorted((root / folder).glob("captions_*.json"))
        if locate(root, path.relative_to(root).as_posix())[0] is not None
    }
    if not files:
        return None
    evaluated = [name for name in files if name.startswith("val")]
    if split is None and len(files) > 1 and len(evaluated) != 1:
        raise ValueError(f"{root} has captions of several splits: {', '.join(sorted(files))}; name one with --split")
    chosen = chosen_split(split, files, (evaluated or list(files))[0], root)
    images, finder = _coco_images(root, files[chosen], (chosen, f"images/{chosen}", "images", ""))
    return ReadSet(
        f"coco_{chosen}", "coco_captions", images, finder.looked_in, CAPTIONS_PER_IMAGE, left_out=finder.left_out
    )


def _coco_images(root: Path, path: Path, folders: Sequence[str]) -> tuple[list[PaperImage], Finder]:
    """Images of a file in COCO's format of captions."""
    content = read_json(path)
    entries = entries_of(content, "images", path, {"id": (int, str), "file_name": (str,)})
    annotations = entries_of(content, "annotations", path, {"image_id": (int, str), "caption": (str,)})
    captions: dict[str, list[str]] = {}
    for annotation in annotations:
        captions.setdefault(str(annotation["image_id"]), []).append(annotation["caption"])
    finder = Finder(root, folders)
    images: list[PaperImage] = []
    for entry in entries:
        file = finder.find(entry["file_name"])
        if file is not None:
            image_id, domain = str(entry["id"]), entry.get("domain")
            own = tuple(captions.get(image_id, ()))
            domain = domain if isinstance(domain, str) else None
            images.append(PaperImage(image_id, own, file, None, None, domain=domain))
    return images, finder


# -- Flickr's texts ---------------------------------------------------------------------------------------------------


def read_flickr(root: Path, split: str | None) -> ReadSet | None:
    """Flickr30k's and Flickr8k's `results_20130124.token`, `Flickr8k.token.txt` or `captions.txt`, with the images.

    A split is a list of names: `Flickr_8k.testImages.txt`, `flickr30k_test.txt` or `test.txt`. Without any, all images.
    """
    path = first_file(root, [name for file in TOKEN_FILES for name in (file, f"*/{file}")])
    if path is None:
        return None
    captions: dict[str, list[str]] = {}
    try:
        for name, caption in _flickr_rows(path):
            captions.setdefault(name, []).append(caption)
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    finder = Finder(root, FLICKR_FOLDERS)
    listed, chosen = _listed_names(root, split)
    if listed is not None:
        known = {Path(name).stem: name for name in captions}
        finder.left_out["no_caption"] += sum(Path(name).stem not in known for name in listed)
        captions = {known[stem]: captions[known[stem]] for name in listed if (stem := Path(name).stem) in known}
    images = []
    for name, own in captions.items():
        file = finder.find(name)
        if file is not None:
            images.append(EvaluationImage(Path(name).stem, tuple(own), file, None, None))
    # Flickr30k has 31,783 images, Flickr8k 8,092; the file's name tells most of them apart
    is_8k = "8k" in path.name.lower() or "8k" in root.name.lower()
    base = "flickr30k" if path.name in TOKEN_FILES[:2] else "flickr8k" if is_8k else root.name
    name = f"{base}_{chosen}" if chosen else base
    return ReadSet(name, "flickr_captions", images, finder.looked_in, CAPTIONS_PER_IMAGE, left_out=finder.left_out)


def _flickr_rows(path: Path) -> Iterator[tuple[str, str]]:
    """(image file, caption) of each line: `NAME#0<tab>CAPTION`, or a table with a header, by comma or by |."""
    lines = each_line(path)
    first = next(lines, "")
    lines = chain([first], lines)
    if "\t" in first:
        for number, line in enumerate(lines, 1):
            name, tab, caption = line.partition("\t")
            if line.strip() and not tab:
                raise ValueError(f"{path}, line {number}: expected NAME#0, a tab and a caption, got {line[:60]!r}")
            if tab:
                yield name.partition("#")[0], caption
        return
    is_bars = "|" in first
    rows = (line.split("|") for line in lines) if is_bars else csv.reader(f"{line}\n" for line in lines)
    header = [cell.strip().lower() for cell in next(iter(rows), [])]
    if len(header) < 2 or header[0] not in ("image", "image_name"):
        raise ValueError(
            f"{path}: expected lines NAME#0<tab>CAPTION or a header image,caption; its first line is {first[:60]!r}"
        )
    separator = "|" if is_bars else ","
    for row in rows:
        if len(row) >= len(header):  # a caption with the separator in it is the last column
            yield row[0].strip(), separator.join(row[len(header) - 1 :]).strip()


def _listed_names(root: Path, split: str | None) -> tuple[list[str] | None, str | None]:
    """(names of a split's images, the split); (None, None) where no list lies there. Raises ValueError."""
    lists = {
        match[1].lower(): path
        for path in sorted(root.glob("*.txt"))
        if (match := re.fullmatch(r"(?:Flickr_?(?:8|30)k[._])?(train|dev|val|test)(?:Images)?\.txt", path.name, re.I))
        and locate(root, path.name)[0] is not None
    }
    if split is None and "test" not in lists:
        return None, None
    chosen = chosen_split(split, lists, "test", root)
    return [line.strip() for line in read_lines(lists[chosen]) if line.strip()], chosen


def _no_split(split: str | None, path: Path) -> None:
    if split is not None:
        raise ValueError(f"{path} is not cut into splits, got {split!r}; leave --split out")


# -- tables and texts beside images -----------------------------------------------------------------------------------


def read_image_table(root: Path, split: str | None) -> ReadSet | None:
    """A pool's folder: a csv, tsv, jsonl or parquet that names images (a row per caption, or lists of captions); or
    KEY.jpg with KEY.txt. A column `split` is respected."""
    has_table = any(table_suffix(path) and path.is_file() for path in root.iterdir())
    try:
        columns = image_columns.detect_images(root) if has_table or _has_texts(root) else None
    except ValueError as error:  # it names options of `curate pool add`, which an evaluation does not have
        if not has_table:
            raise
        first = image_columns.tables_in(root)[0]
        raise ValueError(
            f"{first} has the columns {list(schema_of(first))}; expected one of {list(image_columns.FILE_NAMES)} with "
            f"names of images in {root}, and one of {list(image_columns.CAPTION_NAMES)}: rename yours"
        ) from error
    if columns is None:
        return None
    if "image" not in columns:
        _no_split(split, root)
        return _texts_beside(root)
    tables = image_columns.tables_in(root)
    parts = [read_rows(path, empty_is_null=True) for path in tables]
    if any(part.schema.get(columns["image"]) not in (pl.String, pl.Null) for part in parts):
        raise ValueError(f"{root}: images lie inside its Parquet files; export them as webdataset tars, or as files")
    names = [columns["image"], columns["caption"]]
    if all("split" in part.columns for part in parts):
        names.append("split")
    table = pl.concat([part.select(pl.col(names)) for part in parts])
    chosen = None
    if "split" in names:
        there = table["split"].drop_nulls().cast(pl.String).unique().to_list()
        chosen = chosen_split(split, there, next((name for name in EVALUATED if name in there), "test"), root)
        table = table.filter(pl.col("split") == chosen)
    else:
        _no_split(split, root)
    captions: dict[str, list[str]] = {}
    finder = Finder(root, ("",))
    for name, caption in table.select(names[:2]).iter_rows():
        if name is None:
            finder.left_out["missing_image"] += 1
            continue
        own = captions.setdefault(name, [])
        own += [text for text in (caption if isinstance(caption, list) else [caption]) if text is not None]
    images = []
    for name, own in captions.items():
        file = finder.find(name)
        if file is not None:
            images.append(EvaluationImage(name, tuple(own), file, None, None))
    title = root.name if chosen is None else f"{root.name}_{chosen}"
    return ReadSet(title, "image_table", images, (root.name,), left_out=finder.left_out)


def _has_texts(root: Path) -> bool:
    return any((root / name).with_suffix(".txt").is_file() for name in image_names(root))


def _texts_beside(root: Path) -> ReadSet:
    finder, images = Finder(root, ("",)), []
    for name in image_names(root):
        file = finder.find(name)
        if file is not None:
            caption, reason = image_columns.caption_in(root, Path(name).with_suffix(".txt").as_posix())
            if reason not in (None, "missing_txt"):
                finder.left_out[f"caption_{reason}"] += 1
            own = () if caption is None else (caption,)
            images.append(EvaluationImage(name, own, file, None, None))
    return ReadSet(root.name, "image_and_text", images, (root.name,), left_out=finder.left_out)


#: In the order in which they are tried → what is looked for, for people.
ALL_LAYOUTS: Mapping[Reader, str] = {
    read_karpathy: LAYOUTS[read_karpathy],
    read_nocaps: "nocaps_val_4500_captions.json with the images",
    read_coco: "COCO's annotations/captions_*.json with the images (val2017/, images/)",
    read_flickr: "Flickr's results_20130124.token, Flickr8k.token.txt or captions.txt with the images",
    read_tars: "webdataset tars (KEY.jpg with KEY.txt, KEY.json or KEY.cls), here or in a folder per split",
    read_class_folders: "ImageNet's folders, CLASS/*.jpg, here or in a folder per split",
    read_image_table: "a csv, tsv, jsonl or parquet that names images and captions, or KEY.jpg with KEY.txt",
}


def read_any_set(
    path: Path, *, split: str | None = None, limit: int | None = None, captions_per_image: int | None = None
) -> EvaluationSet:
    """An evaluation set of any layout, captions or labels; arguments and errors as `read_evaluation_set`'s.

    `captions_per_image`: the first ones; default 5 for COCO and Flickr (formulas.md §11), else all.
    """
    if captions_per_image is not None and captions_per_image < 1:
        raise ValueError(f"--captions-per-image must be at least 1, got {captions_per_image}; leave it out for all")
    path = Path(path).absolute()
    folder = path.parent.parent if path.parent.name == "annotations" else path.parent
    read = None
    if path.is_file() and fnmatch(path.name, "captions_*.json"):
        read = read_coco(folder, split or path.stem.removeprefix("captions_"))
    elif path.is_file() and path.name in TOKEN_FILES:
        read = read_flickr(folder, split)
    if read is None:
        read = read_layout(path, split, ALL_LAYOUTS)
    if read.layout == "webdataset":
        read = with_labels(read, path if path.is_dir() else path.parent)
    if isinstance(read, ReadClasses):
        return labelled_set_of(read, path, limit)
    read.captions_per_image = captions_per_image or read.captions_per_image
    return evaluation_set_of(read, path, limit)


def karpathy_of(path: Path, split: str | None = None) -> tuple[str, dict[str, Any]]:
    """(name of the file, its content): the images and captions of a set as Karpathy's JSON, all of split test.

    The file belongs into the folder of the set, from which its names of images count. Raises ValueError for a set
    of tars or of labels, which the package reads as they are.
    """
    found = read_any_set(path, split=split)
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    folder = folder.parent if folder.name == "annotations" else folder
    if found.layout in ("karpathy", "webdataset", "class_folders"):
        raise ValueError(f"{path} is of the layout {found.layout}, which needs no other file: give it as it is")
    entries = [
        {
            "filename": Path(str(image.path)).relative_to(folder).as_posix(),
            "cocoid": image.image_id,
            "split": "test",
            "sentences": [{"raw": caption} for caption in image.captions],
        }
        for image in found.images
    ]
    return f"dataset_{found.name}.json", {"dataset": found.name, "images": entries}
