"""Every method at length: on planted scenes (method × noise kind, AUC), and on real photographs where they are at hand.

    python benchmarks/methods.py scenes --size 1200
    python benchmarks/methods.py photos ../shared/data/photos

`scenes` runs every registered method that the embedded profile can run, and says of the others what they lack. `photos`
runs the image methods on every shard, counts rows in and out, times them, and searches for copies of photographs that
were changed in known ways. Both print Markdown and write CSV to benchmarks/results/.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import imagehash
import numpy as np
import polars as pl
from PIL import Image

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import Settings, load_settings
from curation_assets.engines import load_engine
from curation_assets.flow.conservation import violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import known_limit
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import all_methods, teachers
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.sources.declaration import add_pool, add_world_pool
from curation_assets.stages.signals.tables import derived_columns
from curation_assets.world.pool import plant_evaluation_scenes

RESULTS = Path(__file__).parent / "results"
SHARED = Path(__file__).parents[2] / "shared/data"
WORD_RATINGS = SHARED / "words/concreteness_ratings_half.tsv"
TARGET_SCENES, TARGET_SEED = 100, 977  # whose captions relatedness relates to: a stream of their own
PHYSICAL_ENTITY = 1930  # WordNet 3.0
SCENE_SIDE_PX = 100  # scenes are 128 px wide: limits for photographs of the web would drop all of them
TEACHER_SAMPLE = 400  # samples that the teachers score: a drawing each
RARE_MENTIONS = 5  # of a concept: the paper's 100 are of millions of candidates
LAION_SHARE = 0.5  # of all samples pass laion_filter's cosine here: .28 belongs to OpenAI's ViT-B/32 (formulas.md §4)


def markdown(frame: pl.DataFrame) -> str:
    """A table with numbers to three places."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * frame.width]
    for row in frame.iter_rows():
        cells = (f"{cell:.3f}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def scene_settings(settings: Settings) -> tuple[dict[str, dict[str, Any]], dict[str, Any], dict[str, str]]:
    """(settings of methods, options of the pool, methods that cannot run and why): what the user of a real pool names.

    None of it reads the planted truth of the pool.
    """
    methods: dict[str, dict[str, Any]] = {
        "datacomp_basic": {"min_side_px": SCENE_SIDE_PX},
        "conceptual_captions_image": {"min_side_px": SCENE_SIDE_PX},
        "conceptual_captions": {"limits": {"first_word_capitalised": False}},  # as CC12M: no planted caption has one
    }
    without = {
        "nsfw": "no planted image is unsafe, and the embedded profile names no safety_classifier",
        "aesthetic": "no aesthetic_head is shipped",
        "quality_judge": "no judge is shipped",
        "text_specificity": "no hyperbolic CLIP is shipped",
    }
    if WORD_RATINGS.is_file():
        methods["concreteness_lexicon"] = {"path": str(WORD_RATINGS)}
    else:
        without["concreteness_lexicon"] = f"no word ratings at {WORD_RATINGS}"
    try:
        wordnet: Any = load_engine("wordnet", settings.profile)
    except ModelUnavailableError as error:
        without |= dict.fromkeys(("datacomp_text", "conceptual_captions_transform"), str(error))
    else:
        ids = settings.home / "wordnet_ids.txt"
        ids.write_text("\n".join(f"n{offset:08d}" for offset in things_of(wordnet)))
        methods["datacomp_text"] = {"wordnet_ids": str(ids)}
    targets = settings.home / "target_captions.txt"
    planted = plant_evaluation_scenes(TARGET_SCENES, TARGET_SEED)
    targets.write_text("\n".join(caption for _, captions in planted for caption in captions))
    return methods, {"related_to": str(targets)}, without


def things_of(wordnet: Any) -> list[int]:
    """Offsets of the nouns below 'physical entity', in the place of ImageNet-21k's list, which is not at hand."""
    nouns = wordnet.parts["n"]
    known: dict[int, bool] = {PHYSICAL_ENTITY: True}

    def is_thing(offset: int) -> bool:
        if offset not in known:
            known[offset] = False  # against a circle
            known[offset] = any(is_thing(above) for above in wordnet.synset(offset).hypernyms)
        return known[offset]

    return sorted(offset for offset in {one for senses in nouns.index.values() for one in senses} if is_thing(offset))


def bench_scenes(size: int, seed: int, skip: list[str], settings: Settings) -> None:
    """AUC of clean samples against each planted kind, for every method."""
    given, options, without = scene_settings(settings)
    without |= dict.fromkeys(skip, "left out by --skip")
    named = [name for name, one in all_methods().items() if one.stage == "signals" and name not in without]
    given = {name: one for name, one in given.items() if name in named}
    options |= {
        "methods": named,
        "distil": not {method.name for method in teachers()} & set(skip),
        "distillation_size": TEACHER_SAMPLE,
        "downstream": False,
        "duplicates": True,
        "image_clusters": max(8, size // 16),
        "recipes": {"conceptual_captions": {"rare_mentions": RARE_MENTIONS}},
    }
    settings = with_methods(settings, given)
    add_world_pool(settings, "kinds", size=size, seed=seed, shard_size=-(-size // 2), options=options)
    if "laion_filter" in named:
        ctx = PoolContext.open(settings, "kinds")
        run_with_upstream(ctx, "signals/clip_score")
        cosines = ctx.store.scan("signals/clip_score").select("value").collect()["value"].drop_nulls()
        given["laion_filter"] = {"threshold": float(np.quantile(cosines.to_numpy(), 1 - LAION_SHARE))}
        settings = with_methods(settings, given)
    ctx = PoolContext.open(settings, "kinds")
    run_with_upstream(ctx, "downstream/separation")
    table = ctx.store.read("downstream/separation").with_columns(size=pl.lit(size), seed=pl.lit(seed))
    not_run = [{"method": name, "size": size, "seed": seed, "note": f"not run: {why}"} for name, why in without.items()]
    save(pl.concat([table, pl.DataFrame(not_run)], how="diagonal_relaxed"), f"method_separation_{size}.csv")
    print(f"## {size} planted scenes, seed {seed}: AUC of clean samples against each kind\n")
    print(
        "Bold: made for the kind and separates it (≥ .80); * partly (≥ .65); ✗ does not. ± half of the 95 % interval.\n"
    )
    shown = table.with_columns(cell=pl.struct(pl.all()).map_elements(_cell, pl.String))
    print(markdown(shown.pivot(on="kind", index="method", values="cell", maintain_order=True)))
    counts = table.group_by("kind", maintain_order=True).agg(pl.col("n").max())
    print(f"\nclean {table['n_clean'].max()}, " + ", ".join(f"{kind} {n}" for kind, n in counts.iter_rows()) + "\n")
    for row in table.filter(pl.col("verdict") == "does not").to_dicts():
        print(
            f"- does not separate: {row['method']}, {row['kind']}: {row['auc']:.3f} "
            f"[{row['low']:.3f}, {row['high']:.3f}] {known_limit(row['method'], row['kind']) or ''}"
        )
    gaps = table.filter(pl.col("is_made_for") & (pl.col("auc").is_null()))
    for row in gaps.to_dicts():
        print(f"- no value: {row['method']}, {row['kind']}")
    for name, why in without.items():
        print(f"- not run: {name}: {why}")
    for name, method in all_methods().items():
        if not method.made_for:
            print(f"- made for no planted kind: {name}: {method.no_planted_kind or 'no reason is declared'}")
    print()
    if "text_spotting" in named:
        run_with_upstream(ctx, "downstream/text_in_images")
        print(markdown(ctx.store.read("downstream/text_in_images")) + "\n")
    print(markdown(costs(ctx)) + "\n")


def _cell(row: Mapping[str, Any]) -> str:
    if row["auc"] is None:
        return "no value"
    around = f"{row['auc']:.2f} ± {(row['high'] - row['low']) / 2:.2f}"
    marks = {"separates": f"**{around}**", "partly": f"{around} \\*", "does not": f"{around} ✗", None: around}
    return marks[row["verdict"]]


def with_methods(settings: Settings, given: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The same settings with some methods' settings replaced."""
    return replace(settings, profile=replace(settings.profile, methods={**settings.profile.methods, **given}))


def save(table: pl.DataFrame, name: str) -> None:
    """Write a table of results, numbers to four places."""
    RESULTS.mkdir(exist_ok=True)
    table.with_columns(pl.col(pl.Float64).round(4)).write_csv(RESULTS / name)


def bench_photos(source: Path, settings: Settings) -> None:
    """All image methods on every shard: rows, values, text, duplicates, cost."""
    reference = (
        settings.home / "reference.npy"
    )  # stands in for ImageNet: the filter then is about captions and clusters alone
    encoder: Any = load_engine("image_text_encoder", settings.profile)
    scenes = [scene for scene, _ in plant_evaluation_scenes(100, TARGET_SEED)]
    np.save(reference, encoder.embed_images(scenes))
    named = [
        name for name, one in all_methods().items()
        if one.stage == "signals" and name not in ("nsfw", "aesthetic") and reads_images(one.columns)
    ]  # fmt: skip
    options = {"methods": named, "duplicates": {"perceptual_bits": 4}, "reference_images": str(reference)}
    add_pool(settings, "photos", source, options=options)
    ctx = PoolContext.open(settings, "photos")
    began = time.time()
    rows = []
    for name in [*derived_columns(ctx), *named]:
        run_with_upstream(ctx, f"signals/{name}")
        table = tables_of(ctx)[f"signals/{name}"]
        wrong = [text for shard in ctx.shards() for text in violations(ctx, table, shard)]
        frame = ctx.store.scan(table.name).collect()
        column = "value" if "value" in frame.columns else name
        reasons = frame["reason"].drop_nulls().value_counts(sort=True)
        value = frame[column]
        manifests = [one for key in ctx.store.partitions(table.name) if (one := ctx.store.manifest(table.name, key))]
        rows.append(
            {
                "table": name,
                "rows": frame.height,
                "with_value": value.drop_nulls().len(),
                "mean": value.mean() if value.dtype.is_numeric() else None,
                "reasons": "; ".join(f"{why} {n}" for why, n in reasons.iter_rows()),
                "lost_or_silent": len(wrong),
                "ms_per_row": 1000 * sum(one.seconds for one in manifests) / max(1, frame.height),
            }
        )
    inputs = ctx.store.scan("raw/registered_shards").collect().height
    table = pl.DataFrame(rows).with_columns(input_rows=pl.lit(inputs))
    save(table, "method_photos.csv")
    print(f"## {inputs} photographs in {len(ctx.shards())} shards, {time.time() - began:.0f} s\n")
    print(markdown(table) + "\n")
    spotted = ctx.store.scan("signals/text_spotting").collect()
    print(f"Images with text: {(spotted['text_count'] > 0).mean():.3f}; ", end="")
    print(f"dropped by text spotting: {(spotted['value'] == 0).mean():.4f}\n")
    run_with_upstream(ctx, "fused/duplicates")
    found = ctx.store.read("fused/duplicates")
    kinds = found["kind"].drop_nulls().value_counts(sort=True)
    print("Near-duplicates among them: " + (", ".join(f"{n} {kind}" for kind, n in kinds.iter_rows()) or "none") + "\n")
    print_copies(ctx)


def reads_images(columns: tuple[str, ...]) -> bool:
    """Whether a method looks at the image, or at something that a model makes of it."""
    return bool({"image", "original_width", *DERIVED_COLUMNS} & set(columns))


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
    close = np.concatenate([np.bitwise_count(one ^ every[place:]) for place, one in enumerate(every, start=1)])
    rows.append(
        {"change": f"pairs of {len(every)} different photographs"}
        | {f"≤ {limit} bits": float((close <= limit).sum()) for limit in limits}
    )
    print("Copies of 500 photographs that pHash finds (share):\n\n" + markdown(pl.DataFrame(rows)))


def costs(ctx: PoolContext) -> pl.DataFrame:
    """Milliseconds per row of every table of signals, from the manifests (wall time)."""
    rows = []
    for name in tables_of(ctx):
        if name.startswith("signals/") and ctx.store.partitions(name):
            manifests = [ctx.store.manifest(name, key) for key in ctx.store.partitions(name)]
            found = [one for one in manifests if one is not None]
            total = sum(one.row_count for one in found)
            rows.append({"table": name, "rows": total, "ms per row": 1000 * sum(one.seconds for one in found) / total})
    return pl.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scenes", "photos"))
    parser.add_argument("source", nargs="?", type=Path, default=Path("../shared/data/photos"))
    parser.add_argument("--size", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=404)
    parser.add_argument("--skip", action="append", default=[], help="a method to leave out (repeat)")
    parser.add_argument("--role", action="append", default=[], help="another model for a role: ROLE=ADDRESS (repeat)")
    parser.add_argument("--home", type=Path, help="keep the pool here (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = given.home or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        settings = load_settings(home, "embedded")
        roles = {"student": "embedded:icc_student"} | dict(text.split("=", 1) for text in given.role)
        settings = replace(settings, profile=settings.profile.with_roles(**roles))
        if given.what == "scenes":
            bench_scenes(given.size, given.seed, given.skip, settings)
        else:
            bench_photos(given.source, settings)


if __name__ == "__main__":
    main()
