"""Photos with their captions, out of a table or a folder of tars: what `embedded.photo_pair` trains on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from PIL import Image

from curation_assets.sources.kinds.webdataset import read_tar_rows
from curation_assets.stores.images import decode_image, tar_index
from curation_assets.stores.rankings import load_ranked_image
from curation_assets.stores.tar_samples import find_tars
from curation_assets.stores.text_tables import read_rows


@dataclass(frozen=True)
class Photo:
    """A photo and what people wrote under it."""

    name: str  # in a table as the table has it, in a tar TAR:MEMBER
    captions: tuple[str, ...]  # one or more, none blank
    source: Path  # the table or the tar
    group: str = ""  # photos of a group stay in one fold of a cross-validation: the same site, owner or album

    def load(self) -> Image.Image:
        """Raises ImageRejected for a broken image, OSError for a missing one."""
        if self.source.suffix == ".tar":
            return decode_image(tar_index(self.source).read(self.name.rpartition(":")[2]))
        return load_ranked_image(self.source, self.name)


def read_photos(path: Path) -> list[Photo]:
    """Photos with their captions, sorted by name.

    A folder of webdataset tars (KEY.jpg, KEY.txt) or one tar; or a table (.parquet, .csv, .tsv, .jsonl) with the
    columns image (a path relative to the table, or TAR:MEMBER) and caption, one row per caption, and perhaps group.
    Blank captions are left out. Raises FileNotFoundError where there is nothing, ValueError for missing columns or no
    pair at all.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}; give a folder of tars or a table of image and caption")
    photos = _of_tars(path) if path.is_dir() or path.suffix == ".tar" else _of_table(path)
    if not photos:
        raise ValueError(f"{path}: expected images with captions, got none")
    return photos


def _of_tars(path: Path) -> list[Photo]:
    tars = find_tars(path)
    if not tars:
        raise ValueError(f"{path}: expected .tar files (KEY.jpg, KEY.txt) in it, got none")
    photos = []
    for tar in tars:
        for member, caption in read_tar_rows(tar).select("member", "caption").iter_rows():
            if member is not None and caption is not None and caption.strip():
                photos.append(Photo(f"{tar.name}:{member}", (caption.strip(),), tar))
    return photos


def _of_table(path: Path) -> list[Photo]:
    table = read_rows(path)
    if not {"image", "caption"} <= set(table.columns):
        raise ValueError(f"{path}: expected the columns image and caption, got {table.columns}")
    group = pl.col("group").cast(pl.String).fill_null("") if "group" in table.columns else pl.lit("").alias("group")
    rows = table.select("image", pl.col("caption").cast(pl.String).str.strip_chars(), group).drop_nulls()
    grouped = (
        rows.filter(pl.col("caption") != "")
        .group_by("image", maintain_order=True)
        .agg(pl.col("caption").unique(maintain_order=True), pl.col("group").first())
    )
    return [Photo(str(image), tuple(texts), path, of) for image, texts, of in grouped.sort("image").iter_rows()]


def captions_in(paths: Sequence[Path]) -> list[str]:
    """Distinct captions of text files (one a line) or tables (column caption), in their order."""
    captions: dict[str, None] = {}
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".txt" else _caption_column(path)
        captions |= dict.fromkeys(line.strip() for line in lines if line and line.strip())
    return list(captions)


def _caption_column(path: Path) -> list[str]:
    table = read_rows(path)
    if "caption" not in table.columns:
        raise ValueError(f"{path}: expected a column caption, got {table.columns}")
    return [" ".join(text.split()) for text in table["caption"].drop_nulls().to_list()]
