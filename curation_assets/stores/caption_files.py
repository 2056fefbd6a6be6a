"""Captions to be measured: hypotheses (one per image) and references (several), of JSON files and tables.

JSON as COCO's evaluation has it (results `[{image_id, caption}]`, annotations `{images, annotations}`) or as Karpathy's
splits have it (`{images: [{sentences, split, …}]}`); tables with the columns image_id and caption, one caption a row.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import polars as pl
from PIL import Image

from curation_assets.core.errors import few
from curation_assets.stores.image_files import locate
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import DEFAULT_LIMITS, ImageLimits, ImageRejected, decode_image
from curation_assets.stores.text_tables import read_rows

#: Columns of a table that name an image; the first that is there counts.
ID_COLUMNS = ("image_id", "image", "sample_id", "key")
#: Fields of Karpathy's files by which results may name an image.
_KARPATHY_IDS = ("cocoid", "imgid", "filename")
_SHOWN = 3  # ids in a message


@dataclass(frozen=True)
class CaptionPairs:
    """Hypotheses beside their references, image by image in the order of the references."""

    image_ids: list[str]  # (N,)
    hypotheses: list[str]  # (N,)
    references: list[list[str]]  # (N,), at least one each
    file_names: list[str | None]  # (N,) of the images, where the references name them


def read_caption_pairs(
    hypotheses: Path, references: Path, *, split: str | None = None, only_hypotheses: bool = False
) -> CaptionPairs:
    """Two files as pairs. `split`: of a file of Karpathy's (default test) or of a table with that column.

    `only_hypotheses`: references of other images are left out instead of refused.
    Raises ValueError where the two name different images, an image has two hypotheses, a file is empty, or is not what
    it must be; FileNotFoundError where there is none.
    """
    texts = _one_per_image(_read_hypotheses(hypotheses), hypotheses)
    referenced, file_names = _read_references(references, texts, split)
    unknown = [image for image in texts if image not in referenced]
    if unknown:
        raise ValueError(
            f"{len(unknown):,} of {len(texts):,} hypotheses are of images without references in {references}: "
            f"{few(unknown, _SHOWN)}; its images are named {few(list(referenced), _SHOWN)}"
        )
    missing = [image for image in referenced if image not in texts]
    if missing and not only_hypotheses:
        raise ValueError(
            f"{len(missing):,} of {len(referenced):,} images of {references} have no hypothesis in {hypotheses}: "
            f"{few(missing, _SHOWN)}; add them, or measure the {len(texts):,} others alone with --subset"
        )
    ids = [image for image in referenced if image in texts]
    return CaptionPairs(
        ids, [texts[image] for image in ids], [referenced[image] for image in ids], [file_names.get(i) for i in ids]
    )


class ImageFiles(Sequence[Image.Image]):
    """Image files as a sequence of RGB images, each decoded, within limits, when it is taken."""

    def __init__(self, paths: Sequence[Path], limits: ImageLimits = DEFAULT_LIMITS) -> None:
        self.paths = list(paths)
        self.limits = limits

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> "ImageFiles": ...
    def __getitem__(self, index: int | slice) -> "Image.Image | ImageFiles":
        """Raises ValueError, with the file, for one that is refused or cannot be decoded."""
        if isinstance(index, slice):
            return ImageFiles(self.paths[index], self.limits)
        path = self.paths[index]
        try:
            with path.open("rb") as stream:
                return decode_image(stream.read(self.limits.max_bytes + 1), self.limits)
        except ImageRejected as error:
            raise ValueError(f"{path} cannot be read as an image: {error}; replace it or leave its row out") from error


def find_images(folder: Path, pairs: CaptionPairs) -> ImageFiles:
    """The image of every pair in a folder: by the name that the references give, else by its id, as COCO's files are.

    Raises ValueError where images are missing, FileNotFoundError for no folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    paths, missing = [], []
    for image, name in zip(pairs.image_ids, pairs.file_names, strict=True):
        stems = [image, image.zfill(12)] if image.isdigit() else [image]  # COCO: 000000000139.jpg
        by_id = [f"{stem}{suffix}" for stem in stems for suffix in ("", *IMAGE_SUFFIXES)]
        base = [] if name is None else [name, name.rsplit("/", 1)[-1]]
        path = next(filter(None, (locate(folder, each)[0] for each in (*base, *by_id))), None)
        if path is None:
            missing.append(name or image)
        else:
            paths.append(path)
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(pairs.image_ids):,} images are not in {folder}: {few(missing, _SHOWN)}; "
            "expected files named as the references name them, or by the image's id"
        )
    return ImageFiles(paths)


def _read_hypotheses(path: Path) -> list[tuple[str, str]]:
    """(image, caption) of every row."""
    if path.suffix != ".json":
        return _read_caption_table(path)
    content = _read_json(path)
    if isinstance(content, dict):  # a file of annotations serves too: a caption of a person as hypothesis
        content = content.get("annotations")
    if not isinstance(content, list):
        raise ValueError(f"{path}: expected COCO results, a list of {{image_id, caption}}")
    return _annotated(content, path)


def _read_references(
    path: Path, wanted: Collection[str], split: str | None
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Image → captions in the order of the file, and image → file name where the file has it."""
    file_names: dict[str, str] = {}
    if path.suffix != ".json":
        rows = _read_caption_table(path, split)
    else:
        content = _read_json(path)
        if isinstance(content, list):
            rows = _annotated(content, path)
        elif isinstance(content, dict) and isinstance(content.get("annotations"), list):
            rows = _annotated(content["annotations"], path)
            images = [image for image in content.get("images") or [] if isinstance(image, dict)]
            file_names = {str(image.get("id")): str(image["file_name"]) for image in images if "file_name" in image}
        elif isinstance(content, dict) and isinstance(content.get("images"), list):
            rows, file_names = _karpathy(content["images"], path, wanted, split or "test")
        else:
            raise ValueError(f"{path}: expected COCO annotations {{images, annotations}} or Karpathy's {{images}}")
    references: dict[str, list[str]] = {}
    for image, caption in rows:
        references.setdefault(image, []).append(caption)
    if not references:
        raise ValueError(f"{path} holds no caption")
    return references, file_names


def karpathy_splits(split: str) -> tuple[str, ...]:
    """The splits of Karpathy's files that one is made of: COCO's train has his restval, too."""
    return ("train", "restval") if split == "train" else (split,)


def _karpathy(
    images: list[Any], path: Path, wanted: Collection[str], split: str
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Rows and file names of one split, images named as the hypotheses name them."""
    splits = sorted({str(image.get("split")) for image in images if isinstance(image, dict)})
    chosen = [image for image in images if isinstance(image, dict) and image.get("split") in karpathy_splits(split)]
    if not chosen:
        raise ValueError(f"{path} has no split {split!r}; its splits: {', '.join(splits)}; choose one with --split")
    field = max(_KARPATHY_IDS, key=lambda name: sum(str(image.get(name)) in wanted for image in chosen))
    rows, file_names = [], {}
    for image in chosen:
        try:
            name = str(image[field])
            rows += [(name, str(sentence["raw"])) for sentence in image["sentences"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: an image of split {split} has no {error}; expected Karpathy's layout") from error
        if "filename" in image:
            file_names[name] = "/".join(filter(None, (image.get("filepath"), str(image["filename"]))))
    return rows, file_names


def _annotated(rows: list[Any], path: Path) -> list[tuple[str, str]]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or "image_id" not in row or not isinstance(row.get("caption"), str):
            raise ValueError(
                f"{path}: entry {number} is not {{image_id, caption}} with a text as caption: {str(row)[:80]}"
            )
    if not rows:
        raise ValueError(f"{path} holds no caption")
    return [(str(row["image_id"]), row["caption"]) for row in rows]


def _read_caption_table(path: Path, split: str | None = None) -> list[tuple[str, str]]:
    """Rows of a table with an image column and `caption`, or a list column `captions`."""
    table = read_rows(path)
    image = next((name for name in ID_COLUMNS if name in table.columns), None)
    if image is None or not {"caption", "captions"} & set(table.columns):
        raise ValueError(
            f"{path}: expected the columns image_id (or {', '.join(ID_COLUMNS[1:])}) and caption, "
            f"got {', '.join(table.columns)}"
        )
    if split is not None:
        if "split" not in table.columns:
            raise ValueError(f"{path} has no column split; leave --split out")
        table = table.filter(pl.col("split") == split)
    if "caption" not in table.columns:
        table = table.explode("captions").rename({"captions": "caption"})
    if not table.height:
        raise ValueError(f"{path} holds no caption")
    table = table.select(pl.col(image).cast(pl.String), pl.col("caption").cast(pl.String))
    without = table.with_row_index("row", offset=1).filter(pl.any_horizontal(pl.all().is_null()))
    if without.height:
        raise ValueError(f"{path}: row {without['row'][0]} has no {image} or no caption ({without.height} such rows)")
    return list(table.iter_rows())


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


def _one_per_image(rows: Iterable[tuple[str, str]], path: Path) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    twice: list[str] = []
    for image, caption in rows:
        if image in texts:
            twice.append(image)
        texts[image] = caption
    if twice:
        raise ValueError(
            f"{path}: {len(set(twice)):,} images have several hypotheses ({few(dict.fromkeys(twice), _SHOWN)}); "
            "the metrics take exactly one for each"
        )
    return texts
