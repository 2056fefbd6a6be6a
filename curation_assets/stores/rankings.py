"""Ranking files: which of an image's captions people find better.

A table (.tsv, .csv, .parquet, .jsonl) with one row per image, caption and rater: `image` (path relative to the file, or
`TAR:MEMBER` in a webdataset), `caption`, and `rank` (1 is best, equal ranks are ties) or `rating` (higher is better);
optionally `rater`. Several raters of an image are averaged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.numeric.rankings import mean_ranks
from curation_assets.stores.images import decode_image, read_member
from curation_assets.stores.text_tables import read_table


@dataclass(frozen=True)
class RankedImage:
    """An image and its captions in the file's order."""

    image: str  # as the file names it
    captions: tuple[str, ...]
    ranks: tuple[float, ...]  # 1 is best; ties are equal


def read_rankings(path: Path) -> list[RankedImage]:
    """Images of a ranking file with at least two captions, sorted by name; the ranks of several raters are averaged.

    Raises ValueError where no image has two captions, and as `read_ranks_by_rater`.
    """
    rankings = [
        RankedImage(image, captions, tuple(mean_ranks(list(ranks.values()))))
        for image, (captions, ranks) in read_ranks_by_rater(path).items()
        if len(captions) > 1
    ]
    if not rankings:
        raise ValueError(f"{path}: no image has two captions; there is nothing to rank")
    return rankings


def read_ranks_by_rater(path: Path) -> dict[str, tuple[tuple[str, ...], dict[str, np.ndarray]]]:
    """Image → (captions, rater → (K,) ranks), sorted by image. A rater's later ranks of a caption replace earlier ones.

    Raises ValueError for a missing column, a rank or rating that is no number, or a rater who left captions of an
    image unranked; what `read_table` raises for the file.
    """
    table = read_table(path)
    value = next((name for name in ("rank", "rating") if name in table.columns), None)
    if value is None or not {"image", "caption"} <= set(table.columns):
        raise ValueError(f"{path}: expected the columns image, caption and rank (or rating), got {table.columns}")
    rater = pl.col("rater").cast(pl.String) if "rater" in table.columns else pl.lit("")
    rows = table.select("image", "caption", pl.col(value).cast(pl.Float64, strict=False).alias("n"), rater.alias("who"))
    broken = rows.filter(pl.col("n").is_null() | pl.col("n").is_nan() | pl.col("image").is_null())
    if broken.height:
        raise ValueError(f"{path}: {value} must be a number in every row, got {table[value][0]!r} and the like")
    by_image: dict[str, tuple[tuple[str, ...], dict[str, np.ndarray]]] = {}
    for (image,), group in sorted(rows.group_by("image", maintain_order=True), key=lambda pair: str(pair[0][0])):
        captions = group["caption"].unique(maintain_order=True).to_list()
        ranks: dict[str, np.ndarray] = {}
        for (who,), mine in group.group_by("who", maintain_order=True):
            numbers = dict(mine.select("caption", "n").iter_rows())
            if set(numbers) != set(captions):
                raise ValueError(f"{path}: rater {who!r} ranked {len(numbers)} of {len(captions)} captions of {image}")
            values = np.array([numbers[caption] for caption in captions])
            # ratings are turned into ranks: 1 + how many captions are rated higher
            ranks[str(who)] = values if value == "rank" else 1.0 + (values[None, :] > values[:, None]).sum(axis=1)
        by_image[str(image)] = (tuple(captions), ranks)
    return by_image


def split_by_image(
    ranked: Sequence[RankedImage], held_out: float, seed: int = 0
) -> tuple[list[RankedImage], list[RankedImage]]:
    """(training, held out): an image is on one side with all its captions, by a hash of its name.

    Raises ValueError unless `held_out` is in (0, 1) and both sides get an image.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be in (0, 1), got {held_out}")
    draws = [unit_interval_of(sample_id_of(image.image, ""), f"rankings:{seed}") for image in ranked]
    sides: tuple[list[RankedImage], list[RankedImage]] = ([], [])
    for image, draw in zip(ranked, draws, strict=True):
        sides[draw < held_out].append(image)
    if not all(sides):
        raise ValueError(f"{len(ranked)} images are too few to hold out {held_out}; rank more or hold out more")
    return sides


def load_ranked_image(path: Path, name: str) -> Image.Image:
    """The image that a ranking file at `path` names. Raises ImageRejected for a broken one, OSError for a missing."""
    tar, colon, member = name.rpartition(":")
    if colon and tar.endswith(".tar"):
        return decode_image(read_member(path.parent / tar, member))
    return decode_image((path.parent / name).read_bytes())
