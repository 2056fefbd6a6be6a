"""Small pools whose raw, fused and filtered tables are made by the flow itself; only the signals are hand-written."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.sources.declaration import add_pool
from tests.support.tars import encoded, tar_of

SIGNALS = ("icc", "clip_score", "sieve")
#: The images are noise: no figure measured on photographs holds for them, and all policies apply.
OPTIONS: dict[str, Any] = {"fraction": 0.25, "distil": False, "downstream": False, "image_domain": "other"}


def jpeg(seed: int) -> bytes:
    """A picture of noise that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG")


def write_tar(
    path: Path, rows: list[tuple[str, str, str, bytes]], facts: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> None:
    """(key, url, caption, image) per sample. `facts`: key → what its json has besides."""
    members = []  # a name may come again
    for key, url, caption, image in rows:
        meta = json.dumps({"url": url, "caption": caption, **facts.get(key, {})}).encode()
        members += [(f"{key}.jpg", image), (f"{key}.txt", caption.encode()), (f"{key}.json", meta)]
    tar_of(path, members)


def caption_of(number: int) -> str:
    return " ".join(["a photo of thing", str(number), *["very"] * (number % 5), "small"])


def webdataset_pool(
    home: Path, *, name: str = "photos", shards: int = 3, per_shard: int = 8, first: int = 0
) -> Settings:
    """Declare a pool of tars under `home`/tars. Sample 1 has an empty caption (dropped), sample 2 a broken image."""
    for shard in range(shards):
        rows = []
        for place in range(per_shard):
            number = shard * per_shard + place
            caption = " " if number == 1 else caption_of(number)
            image = b"no jpeg" if number == 2 else jpeg(number)
            rows.append((f"{number:06d}", f"http://host{number % 3}.example/{number}.jpg", caption, image))
        write_tar(home / "tars" / f"{first + shard:06d}.tar", rows)
    settings = load_settings(home, "embedded")
    add_pool(settings, name, home / "tars", options=OPTIONS)
    return settings


def score_by_hand(ctx: PoolContext, shard: str) -> None:
    """Signals that follow from the id alone; clip_score is missing for a sample with 'thing 5'."""
    samples = ctx.store.read("raw/samples", shard)
    for name in SIGNALS:
        values, reasons = [], []
        for row in samples.iter_rows(named=True):
            digest = hashlib.sha256(f"{name}{row['sample_id']}".encode()).digest()
            value: float | None = int.from_bytes(digest[:6], "big") / 2**48
            reason = None
            if row["status"] != "kept":
                value, reason = None, f"upstream_{row['status']}:{row['reason']}"
            elif name == "clip_score" and "thing 5 " in row["caption"]:
                value, reason = None, "no_image"
            values.append(value)
            reasons.append(reason)
        frame = samples.select("sample_id", "source_row").with_columns(
            pl.Series("value", values, dtype=pl.Float64), pl.Series("reason", reasons, dtype=pl.String)
        )
        ctx.store.write(
            f"signals/{name}",
            frame,
            shard,
            code_version="7",
            inputs=ctx.store.input_versions(f"signals/{name}", [("raw/samples", shard)]),
            models=[{"address": f"embedded:{name}", "revision": "shipped", "weights_sha256": "ab" * 32}],
            run_id="run-of-signals",
        )


def bring_up_to_date(settings: Settings, name: str = "photos", run_id: str = "run-7") -> PoolContext:
    """Everything up to the ledger, by the flow's own declarations."""
    ctx = PoolContext.open(settings, name, run_id=run_id)
    tables = tables_of(ctx)
    for shard in ctx.shards():
        for table in ("raw/registered_shards", "raw/downloads", "raw/samples", "raw/provenance"):
            materialise_table(ctx, tables[table], shard, tables=tables)
        score_by_hand(ctx, shard)
    summarise(ctx)
    return ctx


def finished_photos(home: Path, *, shards: int = 3, per_shard: int = 8) -> PoolContext:
    """`bring_up_to_date(webdataset_pool(home, …))`, made once by this process: a copied home is as finished as its
    original (tests/defs/test_copied_home.py).
    """
    shutil.copytree(Path(_made_photos(shards, per_shard).name) / "home", home, symlinks=True, dirs_exist_ok=True)
    return PoolContext.open(load_settings(home, "embedded"), "photos", run_id="run-7")


@cache
def _made_photos(shards: int, per_shard: int) -> "tempfile.TemporaryDirectory[str]":
    """A folder with the home to be copied, which goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="photos-")
    bring_up_to_date(webdataset_pool(Path(folder.name) / "home", shards=shards, per_shard=per_shard))
    return folder


def summarise(ctx: PoolContext) -> None:
    """Fused and filtered, in the order of the flow."""
    tables = tables_of(ctx)
    recipe = ("fused/sieve_range", "fused/clip_score_range", "fused/sieve_clip")
    for name, table in tables.items():
        if name in recipe or name.startswith("filtered/"):
            for shard in ctx.store.partitions("raw/samples") if table.grain == "shard" else [None]:
                materialise_table(ctx, table, shard, tables=tables)
