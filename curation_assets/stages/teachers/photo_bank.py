"""teachers/photo_bank: vectors of some of the pool's own images, among which VBA finds a caption's photograph.

Part of the stage teachers. Option `photo_bank: pool`; docs/decisions/0062.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.core.table_names import PHOTO_BANK, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Fit, Folder, Needs, Shown, Table
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.stores.images import ImageRejected

BANK_SIZE = 2_000  # images, as many as the shipped bank has
IMAGES_AT_ONCE = 64
SAMPLES_FILE = "sample_ids.txt"  # one a line, in the order of the vectors


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The table of the bank; none where the pool uses the shipped one. Raises ValueError for a pool without images."""
    if not ctx.has_photo_bank:
        return
    if not ctx.pool.has_images:
        raise ValueError(
            f"pool {ctx.pool.name!r} has captions only, and photo_bank: pool takes images; set photo_bank: shipped"
        )
    yield Table(
        name=PHOTO_BANK,
        grain="pool",
        inputs=(SAMPLES,),
        version="1",
        description=f"Vectors of up to {BANK_SIZE:,} of the pool's images, drawn by hash of the sample_id, for VBA: "
        "int8, no image. Frozen: samples that come later change nothing until `curate refit POOL --fits`; "
        "drawn again without a sample that is taken down.",
        compute=Folder(_bank),
        needs=Needs(roles=("beam_captioner",), core=True),
        fit=Fit(holds_any=_holds_any),
        shown=Shown(kinds=("torch", "safetensors")),
    )


def _holds_any(ctx: PoolContext, sample_ids: Collection[str]) -> bool:
    """Whether a stored bank has the image of one of the samples."""
    listed = (ctx.store.folder_path(PHOTO_BANK) / SAMPLES_FILE).read_text(encoding="utf-8").splitlines()
    return not set(listed).isdisjoint(sample_ids)


def _bank(ctx: PoolContext, folder: Path) -> None:
    from curation_assets.engines.nearest_captions import NearestCaptions
    from curation_assets.engines.nearest_photo import write_bank

    captioner = ctx.engines(["beam_captioner"])["beam_captioner"]
    if not isinstance(captioner, NearestCaptions):
        raise ValueError(
            f"photo_bank: pool takes a bank of captions as beam_captioner, which reads vectors; got "
            f"{ctx.profile.address('beam_captioner')}. Profile photos has one"
        )
    vectors: list[np.ndarray] = []
    kept: list[str] = []
    with ctx.progress.task("images of VBA's bank", BANK_SIZE) as advance:
        for ids, images in _drawn(ctx):
            vectors.append(captioner.encoder.embed_images(images))
            kept += ids
            advance(len(ids))
    if not kept:
        raise ValueError(f"pool {ctx.pool.name!r} has no image that can be decoded; set photo_bank: shipped")
    write_bank(folder, np.concatenate(vectors), captioner.encoder.identity)
    (folder / SAMPLES_FILE).write_text("".join(f"{sample_id}\n" for sample_id in kept), encoding="utf-8")


def _drawn(ctx: PoolContext) -> Iterator[tuple[list[str], list[Image.Image]]]:
    """Batches of sample_ids and their images, BANK_SIZE in all; each image once, without those that do not decode."""
    columns = ["sample_id", "tar", "member", "image_sha256"]
    rows = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept").select(columns).drop_nulls().collect()
    rows = rows.sort("sample_id").unique("image_sha256", keep="first", maintain_order=True)
    draws = [unit_interval_of(sample_id, "photo_bank") for sample_id in rows["sample_id"]]
    load, left = ctx.image_loader(), BANK_SIZE
    ids: list[str] = []
    images: list[Image.Image] = []
    for row in rows[np.argsort(draws, kind="stable")].iter_rows(named=True):
        try:
            images.append(load(row))
        except ImageRejected:
            continue
        ids.append(row["sample_id"])
        if len(ids) == min(IMAGES_AT_ONCE, left):
            yield ids, images
            left, ids, images = left - len(ids), [], []
        if not left:
            return
    if ids:
        yield ids, images
