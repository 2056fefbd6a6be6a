"""Image methods at length: on planted scenes (method × noise kind), and on real photographs where they are at hand.

    python benchmarks/image_methods.py scenes --size 1200
    python benchmarks/image_methods.py photos ../shared/data/photos

Prints Markdown. `scenes` runs every method that the embedded profile can run; `photos` runs the image methods on every
shard, counts rows in and out, times them, and searches for copies of photographs that were changed in known ways.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import imagehash
import numpy as np
import polars as pl
from PIL import Image

from curation_assets.flow import PoolContext, tables_of
from curation_assets.flow.conservation import violations
from curation_assets.flow.signals import derived_columns
from curation_assets.methods import all_methods
from curation_assets.numeric.near_duplicates import hamming_pairs
from curation_assets.pools import add_pool, add_world_pool
from curation_assets.quality import materialise_with_inputs
from curation_assets.settings import load_settings

IMAGE_METHODS = ["tmars", "text_spotting", "image_based", "laion_filter", "datacomp_basic"]
WITHOUT_MODEL = {"nsfw", "concreteness_lexicon"}  # need a classifier, or a word list, of the user's


def markdown(frame: pl.DataFrame) -> str:
    """A table with numbers to three places."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * frame.width]
    for row in frame.iter_rows():
        cells = (f"{cell:.3f}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bench_scenes(size: int, seed: int, skip: list[str], home: Path) -> None:
    """AUC of clean samples against each planted kind, for every method."""
    named = [
        name for name, method in all_methods().items()
        if method.stage == "signals" and name not in {*WITHOUT_MODEL, *skip}
    ]  # fmt: skip
    settings = load_settings(home, "embedded")
    options = {"methods": named, "distil": False, "downstream": False, "duplicates": True}
    add_world_pool(settings, "kinds", size=size, seed=seed, shard_size=size, options=options)
    ctx = PoolContext.open(settings, "kinds")
    materialise_with_inputs(ctx, "downstream/separation")
    table = ctx.store.read("downstream/separation")
    mark = {"separates": "**", "partly": "*", "does not": "✗", None: ""}
    shown = table.with_columns(
        pl.struct("auc", "verdict")
        .map_elements(lambda cell: f"{mark[cell['verdict']]}{cell['auc']:.2f}{mark[cell['verdict']]}", pl.String)
        .alias("cell")
    )
    print(f"## {size} planted scenes, seed {seed}: AUC of clean against each kind\n")
    print("`**` made for it and separates (≥ .80), `*` partly (≥ .65), `✗` made for it and does not.\n")
    print(markdown(shown.pivot(on="kind", index="method", values="cell", maintain_order=True)))
    counts = table.select("kind", "n").unique(subset="kind", maintain_order=True)
    print("\nkinds: " + ", ".join(f"{kind} {n}" for kind, n in counts.iter_rows()) + "\n")
    materialise_with_inputs(ctx, "downstream/text_in_images")
    print(markdown(ctx.store.read("downstream/text_in_images")) + "\n")
    print(costs(ctx) + "\n")


def bench_photos(source: Path, home: Path) -> None:
    """All image methods on every shard: rows, values, text, duplicates, cost."""
    settings = load_settings(home, "embedded")
    encoder_width = 128
    reference = home / "reference.npy"  # stands in for ImageNet: the filter then is about captions and clusters alone
    np.save(reference, np.random.default_rng(0).normal(size=(50, encoder_width)).astype(np.float32))
    options = {"methods": IMAGE_METHODS, "duplicates": {"perceptual_bits": 4}, "reference_images": str(reference)}
    add_pool(settings, "photos", source, options=options)
    ctx = PoolContext.open(settings, "photos")
    began = time.time()
    rows = []
    for name in [*derived_columns(ctx), "clip_score", "sieve", *IMAGE_METHODS]:
        materialise_with_inputs(ctx, f"signals/{name}")
        table = tables_of(ctx)[f"signals/{name}"]
        wrong = [text for shard in ctx.shards() for text in violations(ctx, table, shard)]
        frame = ctx.store.scan(table.name).collect()
        value = frame["value"] if "value" in frame.columns else frame[name].is_not_null().cast(pl.Float64)
        rows.append(
            {
                "table": name,
                "rows": frame.height,
                "with value": value.drop_nulls().len(),
                "mean": value.mean(),
                "lost or silent": len(wrong),
            }
        )
    inputs = ctx.store.scan("raw/registered_shards").collect().height
    print(f"## {inputs} photographs in {len(ctx.shards())} shards, {time.time() - began:.0f} s\n")
    print(markdown(pl.DataFrame(rows)) + "\n")
    spotted = ctx.store.scan("signals/text_spotting").collect()
    print(f"Images with text: {(spotted['text_count'] > 0).mean():.3f}; ", end="")
    print(f"dropped by text spotting: {(spotted['value'] == 0).mean():.4f}\n")
    materialise_with_inputs(ctx, "fused/duplicates")
    found = ctx.store.read("fused/duplicates")
    kinds = found["kind"].drop_nulls().value_counts(sort=True)
    print("Near-duplicates among them: " + (", ".join(f"{n} {kind}" for kind, n in kinds.iter_rows()) or "none") + "\n")
    print(costs(ctx) + "\n")
    print_copies(ctx)


def changed_copies() -> dict[str, Callable[[Image.Image], Image.Image]]:
    """Ways in which a photograph comes back."""

    def jpeg(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=40)
        return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")

    def cropped(image: Image.Image) -> Image.Image:
        w, h = image.size
        return image.crop((w // 50, h // 50, w - w // 50, h - h // 50))

    return {
        "JPEG quality 40": jpeg,
        "half the size": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC),
        "brighter by a fifth": lambda image: image.point(lambda value: min(255, int(value * 1.2))),
        "2 % cropped on each side": cropped,
        "grey": lambda image: image.convert("L").convert("RGB"),
        "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    }  # fmt: skip


def print_copies(ctx: PoolContext) -> None:
    """Share of changed copies that pHash finds, and pairs of different photographs that it takes for copies."""
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    load = ctx.image_loader()
    images = [load(row) for row in samples.head(500).iter_rows(named=True)]
    own = np.array([int(str(imagehash.phash(image)), 16) for image in images], dtype=np.uint64)
    limits = (0, 2, 4, 6, 8, 10)
    rows = []
    for name, change in changed_copies().items():
        copies = np.array([int(str(imagehash.phash(change(image))), 16) for image in images], dtype=np.uint64)
        bits = np.bitwise_count(own ^ copies)
        rows.append({"change": name} | {f"≤ {limit} bits": float((bits <= limit).mean()) for limit in limits})
    hashes = ctx.store.scan("signals/perceptual_hash").collect()["perceptual_hash"].drop_nulls()
    every = np.unique(np.array([int(text, 16) for text in hashes], dtype=np.uint64))
    close = hamming_pairs(every, max(limits))[1]
    rows.append(
        {"change": f"pairs of {len(every)} different photographs"}
        | {f"≤ {limit} bits": float((close <= limit).sum()) for limit in limits}
    )
    print("Copies of 500 photographs that pHash finds (share):\n\n" + markdown(pl.DataFrame(rows)))


def costs(ctx: PoolContext) -> str:
    """Milliseconds per row of every table of signals, from the manifests (wall time)."""
    rows = []
    for name in tables_of(ctx):
        if name.startswith("signals/") and ctx.store.partitions(name):
            manifests = [ctx.store.manifest(name, key) for key in ctx.store.partitions(name)]
            found = [one for one in manifests if one is not None]
            total = sum(one.row_count for one in found)
            rows.append({"table": name, "rows": total, "ms per row": 1000 * sum(one.seconds for one in found) / total})
    return markdown(pl.DataFrame(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scenes", "photos"))
    parser.add_argument("source", nargs="?", type=Path, default=Path("../shared/data/photos"))
    parser.add_argument("--size", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=404)
    parser.add_argument("--skip", action="append", default=[], help="a method to leave out (repeat)")
    parser.add_argument("--home", type=Path, help="keep the pool here (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = given.home or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        if given.what == "scenes":
            bench_scenes(given.size, given.seed, given.skip, home)
        else:
            bench_photos(given.source, home)


if __name__ == "__main__":
    main()
