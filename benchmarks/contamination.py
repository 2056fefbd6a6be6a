"""Copies of benchmark photographs planted with changes, and unrelated images: what decontamination finds, by kind.

    python benchmarks/contamination.py --data ../shared/data [--profile PROFILE with a role copy_descriptor]

The benchmark is the COCO photographs of photos/*.tar. Each is changed once in every way, by draws that follow from its
key. Limits are those that PDQ's and SSCD's authors give; which views of a benchmark's image are hashed was chosen on
half of the photographs ("choosing", by hash of the key); the other half reports. Unrelated are the photographs of
Flickr8k and images of web pages, none of which is in COCO: each that is dropped is a false alarm. Intervals: Wilson's.
Writes benchmarks/results/contamination.csv.
"""

import argparse
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image, ImageDraw, ImageFont, ImageOps

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.scoring.benchmark_files import read_benchmark
from curation_assets.scoring.derived import pdq_hashes
from curation_assets.stages.signals.contamination import COPY_ROLE, find_in_benchmarks
from curation_assets.stores.images import ImageRejected, decode_image, tar_index

RESULTS = Path(__file__).parent / "results" / "contamination.csv"
IMAGES_AT_ONCE = 256
TEXTS = ("Best day ever!", "www.kestrelpix.example", "when it is Monday again", "© 2021 Okafor Photo")


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """80 to 95 % of the area, anywhere, the sides in proportion."""
    side = float(np.sqrt(rng.uniform(0.8, 0.95)))
    width, height = round(image.width * side), round(image.height * side)
    left, top = rng.integers(0, image.width - width + 1), rng.integers(0, image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def recompressed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(rng.integers(30, 91)))
    return decode_image(buffer.getvalue())


def resized(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    scale = 2 ** rng.uniform(-1, 1)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)


def bordered(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A frame of 2 to 6 % of the longer side, white or black."""
    wide = max(2, round(max(image.size) * rng.uniform(0.02, 0.06)))
    return ImageOps.expand(image, wide, fill=("white", "black")[rng.integers(2)])


def captioned(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """White letters with a dark rim, 6 to 9 % of the height, at the lower or upper edge."""
    drawn, size = image.copy(), max(10, round(image.height * rng.uniform(0.06, 0.09)))
    font, text = ImageFont.load_default(size), TEXTS[rng.integers(len(TEXTS))]
    top = round(image.height * 0.03) if rng.integers(2) else round(image.height * 0.95) - size
    ImageDraw.Draw(drawn).text(
        (image.width / 2, top), text, "white", font, anchor="ma", stroke_width=max(1, size // 12), stroke_fill="black"
    )
    return drawn


CHANGES = {
    "crop, 80-95 % of the area": cropped,
    "mirror image": lambda image, rng: ImageOps.mirror(image),
    "JPEG of quality 30-90": recompressed,
    "resize, 1/2 to 2": resized,
    "border, 2-6 % of the side": bordered,
    "caption written upon": captioned,
}


def photographs(data: Path) -> Iterator[tuple[str, str, bytes]]:
    """(source, key, file) of every photograph."""
    facts = pl.read_parquet(data / "photos" / "captions.parquet", columns=["shard", "key", "source"])
    for (shard,), part in facts.partition_by("shard", as_dict=True, maintain_order=True).items():
        index = tar_index(data / "photos" / f"{shard}.tar")
        for key, source in part.select("key", "source").iter_rows():
            yield source, f"{shard}-{key}", index.read(f"{key}.jpg")


def web_images(data: Path) -> Iterator[bytes]:
    for tar in sorted((data / "web").glob("train-*.tar")):
        index = tar_index(tar)
        yield from (index.read(name) for name in sorted(index.members) if name.endswith((".jpg", ".png", ".webp")))


def rows_of(images: list[Image.Image], descriptor: Any) -> pl.DataFrame:
    """What raw/samples and the derived columns have of images that no file of the benchmark equals byte for byte."""
    none = pl.Series([None] * len(images), dtype=pl.String)
    rows = pl.DataFrame(
        {
            "sample_id": [f"{number:032x}" for number in range(len(images))], "source_row": list(range(len(images))),
            "status": "kept", "reason": none, "caption": none, "image_sha256": none, "original_sha256": none,
            "pdq_hash": pdq_hashes(images),
        }
    )  # fmt: skip
    if descriptor is None:
        return rows
    return rows.with_columns(copy_descriptor=pl.Series(list(descriptor.describe_images(images))))


Counted = tuple[str, str, int, int, int]  # half, of what, images, dropped, dropped or near


def counted(data: Path, descriptor: Any, *, with_crops: bool) -> Iterator[Counted]:
    """What is found per kind of change and half, and among unrelated images."""
    known = list(photographs(data))
    coco = [(key, file) for source, key, file in known if source == "coco2017"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coco.tar"
        with tarfile.open(path, "w") as tar:
            for key, file in coco:
                member = tarfile.TarInfo(f"{key}.jpg")
                member.size = len(file)
                tar.addfile(member, io.BytesIO(file))
        items = read_benchmark("coco", path, words=13, with_crops=with_crops, descriptor=descriptor)
    own = pl.Series([f"coco.tar/{key}.jpg" for key, _ in coco])
    half = np.array([("choosing", "reporting")[zlib.crc32(f"half {key}".encode()) % 2] for key, _ in coco])
    for change, make in CHANGES.items():
        images = [make(decode_image(file), np.random.default_rng(zlib.crc32(key.encode()))) for key, file in coco]
        found = find_in_benchmarks(rows_of(images, descriptor), items, 13)
        is_own = found["item"].eq_missing(own).to_numpy()
        drops = is_own & found["drop_reason"].is_not_null().to_numpy()
        for name in ("choosing", "reporting"):
            here = half == name
            yield name, change, int(here.sum()), int(drops[here].sum()), int(is_own[here].sum())
    flickr = (file for source, _, file in known if source != "coco2017")
    for kind, files in (("unrelated photographs", flickr), ("unrelated web images", web_images(data))):
        counts = np.zeros(3, dtype=np.int64)
        for images in decoded(files):
            found = find_in_benchmarks(rows_of(images, descriptor), items, 13)
            counts += len(images), found["drop_reason"].count(), found["item"].count()
        n, dropped, near = counts.tolist()
        yield "all", kind, n, dropped, near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--profile", help="of a role copy_descriptor; without it PDQ alone compares")
    options = parser.parse_args()
    descriptor = load_engine(COPY_ROLE, load_profile(options.profile)) if options.profile else None
    by = "pdq" if descriptor is None else "pdq, sscd"
    lines = []
    for methods, with_crops in ((by, True), (f"{by}, no crops and frames", False)):
        for half, change, n, dropped, near in counted(options.data, descriptor, with_crops=with_crops):
            low, high = wilson_interval(dropped / n, n)
            lines.append(
                {"methods": methods, "half": half, "of": change, "n": n, "dropped": dropped,
                 "share": round(dropped / n, 5), "low": round(low, 5), "high": round(high, 5), "dropped_or_near": near}
            )  # fmt: skip
    table = pl.DataFrame(lines)
    if RESULTS.is_file():
        before = pl.read_csv(RESULTS, schema=table.schema)
        table = pl.concat([before.filter(~pl.col("methods").is_in(table["methods"].implode())), table])
    table.sort("methods", "half", maintain_order=True).write_csv(RESULTS)
    with pl.Config(tbl_rows=-1, tbl_width_chars=160, fmt_str_lengths=40):
        print(table)


def decoded(files: Iterator[bytes]) -> Iterator[list[Image.Image]]:
    """Images of files some at a time; what cannot be decoded is left out."""
    images: list[Image.Image] = []
    for data in files:
        try:
            images.append(decode_image(data))
        except ImageRejected:
            continue
        if len(images) == IMAGES_AT_ONCE:
            yield images
            images = []
    if images:
        yield images


if __name__ == "__main__":
    main()
