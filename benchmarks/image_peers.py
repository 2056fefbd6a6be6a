"""Signals of images as a user would write them: a pool of processes, Daft, Ray Data. No import of this package.

python benchmarks/image_peers.py WAY FOLDER [--unguarded]

Started by image_signals.py, with any interpreter that has NumPy, Pillow, ImageHash and pyarrow, and Daft or Ray. FOLDER
holds `warm` and `all`, each with tars of photographs and the same bytes as Parquet (key, image). The work is first done
on `warm`, which loads the libraries and starts the processes; then a line says so, and one from standard input starts
the work on `all`. The result is FOLDER/WAY.parquet, a row per image. `--unguarded`: an image that cannot be decoded
raises, as it does in most scripts, instead of becoming a row of nulls.
"""

import argparse
import importlib.metadata
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import imagehash
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageOps

AT_ONCE = 32  # images of a task or batch
NUMBERS = ("image_blur", "image_dark", "image_light", "image_entropy")
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("width", pa.int64()),  # px, as stored
        ("height", pa.int64()),
        ("perceptual_hash", pa.string()),
        *((name, pa.float64()) for name in NUMBERS),
    ]
)
COLUMNS = [name for name in SCHEMA.names if name != "key"]


def signals(data: bytes) -> dict[str, Any]:
    """The columns of an image, by the formulas of formulas.md §14.1 in floats. Raises what Pillow raises."""
    image: Any = Image.open(io.BytesIO(data))
    width, height = image.size
    image = ImageOps.exif_transpose(image).convert("RGB")
    pixels = np.asarray(image).astype(np.float64)  # (H, W, 3)
    red, green, blue = pixels[:, :, 0], pixels[:, :, 1], pixels[:, :, 2]
    brightness = np.sqrt(0.241 * red * red + 0.691 * green * green + 0.068 * blue * blue) / 255
    darkest, brightest = np.percentile(brightness, [5, 99])
    ratio = max(image.size) / 128
    small = image
    if ratio > 1:
        small = image.resize(tuple(max(1, int(side // ratio)) for side in image.size), Image.Resampling.BICUBIC)
    grey = np.asarray(small.convert("L"), dtype=np.float64)
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    deviation = float(np.sqrt(np.var(around - 4 * grey[1:-1, 1:-1])))
    return {
        "width": width,
        "height": height,
        "perceptual_hash": str(imagehash.phash(image)),
        "image_blur": deviation / (deviation + 10),
        "image_dark": float(brightest),
        "image_light": 1 - float(darkest),
        "image_entropy": min(1.0, image.entropy() / 10),
    }


def rows_of(keys: list[str], images: list[bytes], unguarded: bool) -> list[dict[str, Any]]:
    """A row per image, nulls for one that cannot be decoded; `unguarded`: it raises."""
    rows = []
    for key, data in zip(keys, images, strict=True):
        try:
            rows.append({"key": key, **signals(data)})
        except Exception:
            if unguarded:
                raise
            rows.append({"key": key, **dict.fromkeys(COLUMNS)})
    return rows


class Pool:
    """`concurrent.futures`: a task is a slice of a tar."""

    def __init__(self, unguarded: bool) -> None:
        self.unguarded = unguarded
        self.executor = ProcessPoolExecutor(os.cpu_count())

    def run(self, folder: Path, out: Path) -> None:
        """Members are located here and read by the processes."""
        parts = [part for path in sorted(folder.glob("*.tar")) for part in _parts(path)]
        work = self.executor.map(partial(_rows_of_part, unguarded=self.unguarded), parts)
        pq.write_table(pa.Table.from_pylist([row for rows in work for row in rows], schema=SCHEMA), out)


def _parts(path: Path) -> Iterator[tuple[Path, list[tuple[str, int, int]]]]:
    """Slices of a tar's images: (key, offset, size) of each."""
    with tarfile.open(path) as tar:
        images = [
            (Path(member.name).stem, member.offset_data, member.size) for member in tar if member.name.endswith(".jpg")
        ]
    for start in range(0, len(images), AT_ONCE):
        yield path, images[start : start + AT_ONCE]


def _rows_of_part(part: tuple[Path, list[tuple[str, int, int]]], unguarded: bool) -> list[dict[str, Any]]:
    path, members = part
    images = []
    with path.open("rb") as file:
        for _, offset, size in members:
            file.seek(offset)
            images.append(file.read(size))
    return rows_of([key for key, _, _ in members], images, unguarded)


class Daft:
    """Daft's own runner: a class with a batch method, an instance in a process of its own for each core."""

    def __init__(self, unguarded: bool) -> None:
        import daft
        from daft import DataType

        self.daft = daft
        types = {"width": DataType.int64(), "height": DataType.int64(), "perceptual_hash": DataType.string()}
        types |= dict.fromkeys(NUMBERS, DataType.float64())

        @daft.cls(max_concurrency=os.cpu_count(), use_process=True)
        class Signals:
            def __init__(self) -> None:
                self.unguarded = unguarded

            @daft.method.batch(return_dtype=DataType.struct(types), unnest=True, batch_size=AT_ONCE)
            def of(self, key: Any, image: Any) -> Any:
                rows = rows_of(key.to_pylist(), image.to_pylist(), self.unguarded)
                return [{name: row[name] for name in COLUMNS} for row in rows]

        self.signals = Signals()

    def run(self, folder: Path, out: Path) -> None:
        """From Parquet of bytes."""
        col = self.daft.col
        frame = self.daft.read_parquet(f"{folder}/*.parquet")
        made = frame.select(col("key"), self.signals.of(col("key"), col("image")))
        pq.write_table(made.to_arrow().select(SCHEMA.names).cast(SCHEMA), out)


class RayData:
    """Ray on this machine: `map_batches` over Parquet of bytes."""

    def __init__(self, unguarded: bool) -> None:
        import ray

        os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
        ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
        self.data, self.unguarded = ray.data, unguarded
        ray.data.DataContext.get_current().enable_progress_bars = False

    def run(self, folder: Path, out: Path) -> None:
        """Blocks of a file each, as Ray cuts them itself."""
        unguarded = self.unguarded

        def of_batch(batch: pa.Table) -> pa.Table:
            rows = rows_of(batch["key"].to_pylist(), batch["image"].to_pylist(), unguarded)
            return pa.Table.from_pylist(rows, schema=SCHEMA)

        frame = self.data.read_parquet(sorted(str(path) for path in folder.glob("*.parquet")))
        made = frame.map_batches(of_batch, batch_format="pyarrow", batch_size=AT_ONCE)
        pq.write_table(pa.concat_tables(list(made.iter_batches(batch_format="pyarrow", batch_size=None))), out)


WAYS: dict[str, tuple[type[Any], str]] = {"pool": (Pool, ""), "daft": (Daft, "daft"), "ray": (RayData, "ray")}


def say(**facts: Any) -> None:
    """A line for the process that measures."""
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Start, warm up, wait, work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unguarded", action="store_true", help="a broken image raises")
    given = parser.parse_args()
    make, package = WAYS[given.way]
    way = make(given.unguarded)
    out = given.folder / f"{given.way}.parquet"
    way.run(given.folder / "warm", out)
    names = [package] if package else []
    say(ready={name: importlib.metadata.version(name) for name in [*names, "pillow", "numpy"]})
    sys.stdin.readline()
    start = time.perf_counter()
    way.run(given.folder / "all", out)
    say(phase="signals", seconds=time.perf_counter() - start)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
