"""Benchmarks as people have them, folders, tars, .npy and .jsonl, and what of their items others are compared with.

An item is an image, a row of an array, or a text. Of images nothing but hashes and vectors is kept, of texts hashes of
their runs of words.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image, ImageDraw, ImageOps

from curation_assets.numeric.identity import u64_of_hex
from curation_assets.numeric.ngrams import ngram_hashes
from curation_assets.scoring.derived import pdq_hashes
from curation_assets.stores.arrays import load_npy
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import DEFAULT_LIMITS, ImageRejected, decode_image, tar_index
from curation_assets.stores.text_tables import read_lines

READ = (*IMAGE_SUFFIXES, ".tar", ".npy", ".jsonl", ".txt")
PDQ_BITS, PDQ_WORDS = 256, 4
#: Each is hashed: what PDQ's library makes of the hash itself (`compute_dihedral`) lies a median of 26 bits from that
#: (150 photographs), and of a quarter beyond 31.
TURNS = tuple(Image.Transpose)
FRAMES = tuple((share, colour) for share in (0.025, 0.04, 0.055) for colour in ("white", "black"))  # of the longer side
#: Top of a band, as a share of the height: half transparent grey, BAND_SIZE, has the effect of a line of text.
BANDS, BAND_SIZE = (0.03, 0.9), (0.7, 0.07)  # width and height, of the image's
#: Side of a crop → how many places it has from left to right, and from top to bottom: chosen on one half of
#: benchmarks/contamination.py's photographs, so that PDQ finds 95 % of crops of at least 80 % of the area.
CROPS = {0.97: 3, 0.945: 5, 0.92: 6, 0.9: 6}
CROPPED_FROM_PX = 512  # longer side; crops of larger images are made of them reduced
TEXT_KEYS = ("caption", "captions", "question", "questions", "text", "texts")
IMAGES_AT_ONCE = 64

#: Grain: one row per item of a benchmark.
ITEM_SCHEMA = pl.Schema(
    {
        "benchmark": pl.String(),  # name of the folder, or of the file without its ending
        "benchmark_sha256": pl.String(),
        "item": pl.String(),  # file, member of a tar, row of an array or line
        "bytes_digest": pl.String(),  # `bytes_digest` of an image's file
        "pdq_hashes": pl.List(pl.String()),  # 64 hex digits: of an image's `views`, or an .npy's own
        "copy_descriptors": pl.List(pl.List(pl.Float32())),  # unit vectors: of an image as it is and mirrored
        "ngrams": pl.List(pl.UInt64()),  # `ngram_hashes` of a text
        "reason": pl.String(),  # why others cannot be compared with it; null where they can
    }
)


def bytes_digest(sha256: str) -> str:
    """What stands for an image file's sha256 here, so that no table but raw/samples has that of a sample."""
    return hashlib.sha256(sha256.encode()).hexdigest()[:32]


def view_of(number: int) -> str:
    """What the `number`th hash of an image is of: as it is, turned, framed, written upon, cropped."""
    for name, count in (
        ("as it is", 1),
        ("turned", len(TURNS)),
        ("framed", len(FRAMES)),
        ("written upon", len(BANDS)),
    ):
        if number < count:
            return name
        number -= count
    return "cropped"


def views(image: Image.Image, *, with_crops: bool = True) -> Iterator[Image.Image]:
    """An image as copies of it look, in the order of `view_of`; `with_crops` false: as it is and turned."""
    yield image
    yield from map(image.transpose, TURNS)
    if not with_crops:
        return
    image = image.copy()
    image.thumbnail((CROPPED_FROM_PX, CROPPED_FROM_PX))
    for share, colour in FRAMES:
        yield ImageOps.expand(image, max(1, round(max(image.size) * share)), fill=colour)
    wide, high = (round(length * share) for length, share in zip(image.size, BAND_SIZE, strict=True))
    for share in BANDS:
        left, top, banded = (image.width - wide) // 2, round(image.height * share), image.copy()
        ImageDraw.Draw(banded).rectangle((left, top, left + wide, top + high), fill="#808080")
        yield Image.blend(image, banded, 0.5)
    for side, places in CROPS.items():
        width, height = (max(1, round(length * side)) for length in image.size)
        first = 0.0 if places > 3 else 0.12
        for along in np.linspace(first, 1 - first, places):
            for down in np.linspace(first, 1 - first, places):
                left, top = round((image.width - width) * along), round((image.height - height) * down)
                yield image.crop((left, top, left + width, top + height))


def benchmark_paths(given: Sequence[str]) -> dict[str, Path]:
    """Name → path. Raises FileNotFoundError for one that is not there, ValueError for one of another kind, or for two
    of one name."""
    named: dict[str, Path] = {}
    for text in given:
        path = Path(text).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"decontaminate: no file or folder {text}; correct the option, or bring it back")
        if path.is_file() and path.suffix.lower() not in (".tar", ".npy", ".jsonl"):
            raise ValueError(f"decontaminate: expected a folder, .tar, .npy or .jsonl, got {text}")
        name = path.resolve().name if path.is_dir() else path.stem
        if name in named:
            raise ValueError(f"decontaminate: {named[name]} and {path} are both called {name!r}; rename one of them")
        named[name] = path
    return named


def files_of(path: Path) -> list[Path]:
    """Files of a benchmark that are read, sorted. Raises ValueError for a folder without any."""
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in READ)
    if not found:
        raise ValueError(f"decontaminate: {path} holds none of: {', '.join(READ)}")
    return found


def benchmark_sha256(path: Path) -> str:
    """64 hex digits: of a file its own, of a folder over names and content of its files."""
    if path.is_file():
        return file_sha256(path)
    lines = [f"{file.relative_to(path).as_posix()}\0{file_sha256(file)}\n" for file in files_of(path)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def benchmark_hashes(given: Sequence[str]) -> dict[str, str]:
    """Name → sha256 of its content, as it is now. Raises as `benchmark_paths`."""
    return {name: benchmark_sha256(path) for name, path in benchmark_paths(given).items()}


@dataclass
class _Reader:
    words: int
    with_crops: bool
    descriptor: Any  # an engine of the role copy_descriptor, or None
    items: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[tuple[dict[str, Any], Any]] = field(default_factory=list)  # items and images to be described

    def image(self, item: str, data: bytes) -> None:
        row: dict[str, Any] = {"item": item, "bytes_digest": bytes_digest(hashlib.sha256(data).hexdigest())}
        self.items.append(row)
        try:
            image = decode_image(data)
        except ImageRejected as rejection:
            row["reason"] = f"image_{rejection.reason}"
            return
        hashes = pdq_hashes([*views(image, with_crops=self.with_crops)])
        if hashes[0]:
            row["pdq_hashes"] = [text or hashes[0] for text in hashes]  # a part of it may be flat
        elif self.descriptor is None:
            row["reason"] = "flat_image"
        if self.descriptor is not None:
            self.waiting.append((row, image))
            if len(self.waiting) == IMAGES_AT_ONCE:
                self.describe()

    def describe(self) -> None:
        """Give the images that wait their vectors, as they are and mirrored."""
        images = [image for _, image in self.waiting]
        if images:
            both = self.descriptor.describe_images([*images, *map(ImageOps.mirror, images)])
            for number, (row, _) in enumerate(self.waiting):
                row["copy_descriptors"] = [both[number].tolist(), both[number + len(images)].tolist()]
        self.waiting = []

    def text(self, item: str, text: str) -> None:
        ngrams = ngram_hashes(text, self.words)
        self.items.append({"item": item, "ngrams": ngrams.tolist(), "reason": None if len(ngrams) else "few_words"})

    def file(self, path: Path, name: str) -> None:
        kind = path.suffix.lower()
        if kind == ".tar":
            index = tar_index(path)
            if index.damage is not None:
                raise ValueError(f"decontaminate: {path} is damaged: {index.damage}; bring it back whole")
            for member in sorted(index.members):
                self.bytes_of(Path(member).suffix.lower(), f"{name}/{member}", index.read(member))
        elif kind == ".npy":
            self.array(path, name)
        elif kind == ".jsonl":
            for number, text in _texts(path):
                self.text(f"{name}:{number}", text)
        elif kind in IMAGE_SUFFIXES and path.stat().st_size > DEFAULT_LIMITS.max_bytes:
            self.items.append({"item": name, "reason": "image_too_many_bytes"})
        else:
            self.bytes_of(kind, name, path.read_bytes())

    def bytes_of(self, kind: str, item: str, data: bytes) -> None:
        if kind in IMAGE_SUFFIXES:
            self.image(item, data)
        elif kind == ".txt":  # the caption beside an image
            self.text(item, data.decode("utf-8", "replace"))

    def array(self, path: Path, name: str) -> None:
        array = load_npy(path)
        if array.ndim == 2 and array.dtype.kind == "f":
            if self.descriptor is None:
                raise ValueError(
                    f"decontaminate: {path} holds vectors, and no role copy_descriptor makes vectors of the pool's "
                    "images; name SSCD (docs/models/sscd.md), or bring PDQ hashes"
                )
            if array.shape[1] != self.descriptor.width:
                raise ValueError(
                    f"decontaminate: {path} holds vectors of {array.shape[1]} numbers, the copy_descriptor makes "
                    f"{self.descriptor.width}; make them with the same model"
                )
            vectors = array.astype(np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not (np.isfinite(vectors).all() and (lengths > 0).all()):
                raise ValueError(f"decontaminate: {path} holds vectors of length 0, or that are not finite")
            for row, vector in enumerate(vectors / lengths):
                self.items.append({"item": f"{name}:{row}", "copy_descriptors": [vector.tolist()]})
            return
        for row, text in enumerate(_hashes(array, path)):
            self.items.append({"item": f"{name}:{row}", "pdq_hashes": [text]})


def read_benchmark(
    name: str, path: Path, *, words: int, with_crops: bool = True, descriptor: Any = None
) -> pl.DataFrame:
    """The items of a benchmark (ITEM_SCHEMA), in order of their files. Damaged images keep their row, with a reason.

    `descriptor`: an engine of the role copy_descriptor; None: images have no such vectors. Raises ValueError for a
    file that cannot be read, and where nothing at all can be compared.
    """
    reader = _Reader(words, with_crops, descriptor)
    for file in files_of(path):
        reader.file(file, file.name if file == path else file.relative_to(path).as_posix())
    reader.describe()
    facts = {"benchmark": name, "benchmark_sha256": benchmark_sha256(path)}
    empty = dict.fromkeys(ITEM_SCHEMA)
    frame = pl.DataFrame([{**empty, **facts, **item} for item in reader.items], schema=ITEM_SCHEMA, orient="row")
    if frame["reason"].null_count() == 0:
        counted = frame["reason"].value_counts(sort=True).head(3)
        raise ValueError(
            f"decontaminate: of {path} nothing can be compared: "
            + (", ".join(f"{reason} {count}" for reason, count in counted.iter_rows()) or "it is empty")
            + f" (a text has to have {words} words, see decontaminate_words)"
        )
    return frame


def image_of_item(path: Path, item: str) -> bytes | None:
    """The file of an image that an item of the benchmark at `path` names; None where it is none, or not there."""
    for file in files_of(path):
        name = file.name if file == path else file.relative_to(path).as_posix()
        if file.suffix.lower() in IMAGE_SUFFIXES and name == item:
            return file.read_bytes()
        if file.suffix.lower() == ".tar" and item.startswith(f"{name}/"):
            index, member = tar_index(file), item.removeprefix(f"{name}/")
            return index.read(member) if member in index.members and Path(member).suffix in IMAGE_SUFFIXES else None
    return None


def _hashes(array: np.ndarray, path: Path) -> Iterator[str]:
    """PDQ hashes as 64 hex digits: of texts (M,), bytes (M, 32), 64-bit words (M, 4), or bits (M, 256)."""
    shape, kind = array.shape[1:], array.dtype
    if array.ndim == 1 and kind.kind in "US":
        texts = [str(text.decode("ascii", "replace") if isinstance(text, bytes) else text).lower() for text in array]
        if all(len(text) == 64 and not set(text) - set("0123456789abcdef") for text in texts):
            return iter(texts)
    if shape == (32,) and kind == np.uint8:
        return (row.tobytes().hex() for row in array)
    if shape == (PDQ_WORDS,) and kind == np.uint64:
        return (row.astype(">u8").tobytes().hex() for row in array)
    if shape == (PDQ_BITS,) and kind.kind in "bui" and ((array == 0) | (array == 1)).all():
        return (np.packbits(row.astype(np.uint8)).tobytes().hex() for row in array)
    raise ValueError(
        f"decontaminate: {path} holds {kind} of shape {array.shape}; expected PDQ hashes, (M,) of 64 hex digits, "
        "(M, 32) uint8, (M, 4) uint64 or (M, 256) of 0 and 1, or SSCD vectors, (M, D) of a float type"
    )


def pdq_words(texts: Sequence[str]) -> np.ndarray:
    """(N,) texts of 64 hex digits → (N, 4) uint64."""
    letters = np.frombuffer("".join(texts).encode(), np.uint8).reshape(len(texts), 64)
    return u64_of_hex(letters)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """(number of the line, text) of a .jsonl: texts, or objects with some of TEXT_KEYS."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"decontaminate: {path}, line {number} is not JSON: {error}") from error
        if isinstance(content, dict):
            found = [content[key] for key in TEXT_KEYS if content.get(key) is not None]
            texts = [text for part in found for text in (part if isinstance(part, list) else [part])]
        else:
            texts = [content]
        if not texts or not all(isinstance(text, str) for text in texts):
            got = f"the keys {sorted(content)[:8]}" if isinstance(content, dict) else repr(content)[:80]
            raise ValueError(
                f"decontaminate: {path}, line {number}: expected a text, or an object with texts under "
                f"{', '.join(TEXT_KEYS)}; got {got}"
            )
        for text in texts:
            yield number, text
