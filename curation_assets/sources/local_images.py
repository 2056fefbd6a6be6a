"""Images of a shard that lie in the pool's own source: copied into a tar byte for byte, as downloads lie in one."""

import hashlib
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.sources.image_columns import image_cells
from curation_assets.sources.pool_facts import PoolFacts
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.stores.image_files import locate
from curation_assets.stores.image_formats import DECODED, format_of
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.tar_samples import SIDECAR_SCHEMA
from curation_assets.stores.tar_writing import add_member

#: Where a row's image lies.
IMAGE_SCHEMA = pl.Schema(
    {
        "image_file": pl.String,  # a Parquet file or an image, relative to the source's folder
        "image_row": pl.Int64,  # row of the Parquet file; null: the file is the image
        "image_sha256": pl.String,
    }
)

#: (rows, most bytes of an image) → each row with at most one byte more than these of its image.
ReadImages = Callable[[pl.DataFrame, int], Iterator[tuple[dict[str, Any], bytes]]]

#: As a download leaves it: captions are joined later.
_RESULTS = {name: kind for name, kind in SIDECAR_SCHEMA.items() if name != "caption"}


def extension_of(data: bytes) -> str:
    """jpg, png, avif or another that is decoded, by the first bytes; bin for all else."""
    kind = format_of(data)
    return kind.extensions[0] if kind in DECODED else "bin"


@dataclass(frozen=True)
class LocalImages:
    """Where the images of one shard lie."""

    read: ReadImages
    located: pl.DataFrame  # source_row, image_file, image_row, image_sha256
    first_row: int  # source_row of the shard's first row
    max_bytes: int  # larger images are not copied

    @classmethod
    def of(cls, pool: PoolFacts, requested: pl.DataFrame, read: ReadImages) -> "LocalImages":
        """The images of the requested rows of a shard."""
        number = int(requested["source_row"][0]) // pool.shard_size if requested.height else 0
        located = requested.select("source_row", *IMAGE_SCHEMA.names())
        return cls(read, located, number * pool.shard_size, pool.download.max_bytes)

    @property
    def digest(self) -> str:
        """Changes with the images."""
        return images_digest(self.located)

    def write(self, rows: pl.DataFrame, folder: Path, number: int, on_rows: Callable[[int], None]) -> None:
        """Write NNNNNN.tar and NNNNNN.parquet of `rows` into `folder`, in img2dataset's layout.

        Keys count from the shard's first row, so a row that is left out changes no other member. An image is copied
        whatever it holds; whether it can be decoded is asked of all pools' images later.
        """
        name = f"{number:06d}"
        located = rows.select("sample_id", "source_row", "url").join(
            self.located, on="source_row", how="left", maintain_order="left"
        )
        results = []
        with tarfile.open(folder / f"{name}.tar", "w") as tar:
            for row, data in self.read(located, self.max_bytes):
                key = f"{name}{row['source_row'] - self.first_row:04d}"
                result: dict[str, Any] = dict.fromkeys(_RESULTS)
                result |= {"uid": row["sample_id"], "key": key, "url": row["url"], "status": "success"}
                try:
                    member = f"{key}.{extension_of(self._sound(row, data))}"
                except ImageRejected as rejection:
                    results.append(result | {"status": "failed_to_resize", "error_message": str(rejection)})
                else:
                    add_member(tar, member, data)
                    results.append(result | {"sha256": row["image_sha256"]})
                on_rows(1)
        pl.DataFrame(results, schema=_RESULTS, orient="row").write_parquet(folder / f"{name}.parquet")

    def _sound(self, row: dict[str, Any], data: bytes) -> bytes:
        if len(data) > self.max_bytes:
            raise ImageRejected("too_many_bytes", f"more than {self.max_bytes} bytes")
        if hashlib.sha256(data).hexdigest() != row["image_sha256"]:
            raise ImageRejected("changed", f"{row['image_file']} is no longer what was registered; run again")
        return data


def images_digest(located: pl.DataFrame) -> str:
    """A digest of the images of rows (source_row, image_sha256)."""
    return frame_sha256(located.select("source_row", "image_sha256"))


def images_of_files(
    folder: Path, column: str | None, located: pl.DataFrame, max_bytes: int
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Images that lie in files of a folder: as these files, or (`image_row`) in the column of a Parquet file.

    In order; rows of one Parquet file are read as one scan.
    """
    for (file, is_inside), part in located.with_columns(is_inside=pl.col("image_row").is_not_null()).group_by(
        "image_file", "is_inside", maintain_order=True
    ):
        records = part.drop("is_inside").to_dicts()
        if is_inside:
            assert column is not None, "rows of a Parquet file need the name of its image column"
            ordered = sorted(records, key=lambda record: record["image_row"])
            wanted = [record["image_row"] for record in ordered]
            cells = image_cells(folder / str(file), column, wanted)
            for record, (data, _) in zip(ordered, cells, strict=True):
                yield record, (data or b"")[: max_bytes + 1]
        else:
            for record in records:
                path, _ = locate(folder, str(file))
                yield record, b"" if path is None else _read_up_to(path, max_bytes + 1)


def _read_up_to(path: Path, size: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(size)
