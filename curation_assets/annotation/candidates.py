"""Candidate captions of each image for ranking: references, what captioners write, and rewrites by people."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import polars as pl

from curation_assets.core.roles import Captioner
from curation_assets.scoring.derived import derive_column
from curation_assets.scoring.files import as_samples, load_row_image, read_captions
from curation_assets.stores.text_tables import read_table

SCHEMA = {"image": pl.String, "caption": pl.String, "source": pl.String}


def gather_candidates(
    source: Path,
    captioners: Mapping[str, Captioner],
    *,
    beside: Path,
    count: int = 3,
    rewrites: Path | None = None,
    limit: int | None = None,
) -> pl.DataFrame:
    """Columns image, caption, source ('reference', a captioner's address, or 'rewrite'); grouped by image.

    A caption that an image has already is left out, as are texts that a ranking file cannot hold. Images are named as
    `rankings.load_ranked_image` reads them from the folder `beside`. Compress & Align §3.1: 8 to 10 per image.
    """
    table = read_captions(source)
    if "member" in table.columns:
        members = [f"{_relative(Path(row['tar']), beside)}:{row['member']}" for row in table.iter_rows(named=True)]
        table = table.with_columns(pl.Series("image", members))
    if "image" not in table.columns:
        raise ValueError(f"{source}: expected a webdataset or a column image, got {table.columns}")
    images = table["image"].unique(maintain_order=True).to_list()[:limit]
    table = table.filter(pl.col("image").is_in(images))
    parts = [table.select("image", "caption", pl.lit("reference").alias("source"))]
    if "captions" in table.columns and table.schema["captions"] == pl.List(pl.String):
        more = table.select("image", pl.col("captions").alias("caption"), pl.lit("reference").alias("source"))
        parts.append(more.explode("caption"))
    samples = as_samples(table.unique("image", keep="first", maintain_order=True))
    for address, captioner in captioners.items():
        load_image = partial(load_row_image, source)
        written = derive_column("generated_captions", samples, captioner, count=count, load_image=load_image)
        captioned = samples.select("image").with_columns(written["generated_captions"].alias("caption"))
        parts.append(captioned.explode("caption").with_columns(pl.lit(address).alias("source")))
    if rewrites is not None:
        parts.append(read_table(rewrites).select("image", "caption", pl.lit("rewrite").alias("source")))
    one_line = ~pl.col("caption").str.contains(r"[\t\n\r]") & (pl.col("caption").str.strip_chars() != "")
    candidates = (
        pl.concat([part.cast(SCHEMA) for part in parts])  # type: ignore[arg-type]
        .filter(pl.col("image").is_in(images) & one_line)
        .unique(["image", "caption"], keep="first", maintain_order=True)
        .sort("image", maintain_order=True)
    )
    if "member" in table.columns:
        return candidates
    named = {image: _relative(source.parent / image, beside) for image in images}
    return candidates.with_columns(pl.col("image").replace_strict(named, return_dtype=pl.String))


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()
