"""What trained models are measured on: scenes of the world, images held out of the pool, or a standard set.

`downstream/evaluation_set` lists images with their captions; `downstream/held_out` the rows of the pool that no model
is trained on because of it.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from curation_assets.core.errors import few
from curation_assets.core.table_names import EVALUATION_SET, SAMPLES
from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.evaluation.sets.images import EvaluationImage, load_image
from curation_assets.evaluation.sets.read_set import read_evaluation_set
from curation_assets.evaluation.training_sets import HELD_OUT, training_tables
from curation_assets.evaluation.truth import has_truth, read_truth
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Folder, Shown, Table
from curation_assets.numeric.identity import is_sample_id, unit_interval_of
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import ImageRejected, read_member
from curation_assets.stores.tar_writing import add_member

SCENES = "downstream/evaluation_scenes"
SCENES_TAR = "scenes.tar"
SCENE_SEED = 7_000_001  # never a pool's seed
DEFAULT_SCENES, DEFAULT_IMAGES = 200, 5_000

#: Grain: one row per image of the evaluation set.
_EVALUATION: dict[str, Any] = {
    "image_id": pl.String,
    "tar": pl.String,  # relative to the pool's work folder, or absolute
    "member": pl.String,
    "path": pl.String,  # of images that lie in no tar
    "image_sha256": pl.String,  # of the file, where it was read
    "captions": pl.List(pl.String),
    "reason": pl.String,  # why nothing is measured on it; null for images that are
}
EVALUATION_SCHEMA: Any = pl.Schema(_EVALUATION)
HELD_OUT_SCHEMA: Any = pl.Schema({"shard": pl.String, "source_row": pl.Int64, "why": pl.String})


@dataclass(frozen=True)
class Chosen:
    """The option `evaluation_set`, read."""

    kind: Literal["scenes", "split", "shard", "path"]
    share: float = 0.0  # of a split
    shard: str = ""
    path: Path = Path()

    @property
    def description(self) -> str:
        """In words, for tables and pages."""
        return {
            "scenes": "held-out scenes of the same world",
            "split": f"images of this pool held out of training, a share of {self.share:g} by their hash",
            "shard": f"the pool's shard {self.shard}, held out of training",
            "path": f"the set at {self.path}",
        }[self.kind]


def chosen_set(ctx: PoolContext) -> Chosen | None:
    """What the pool's models are measured on; None where it names nothing.

    Raises ValueError for what is no such set.
    """
    text = DownstreamOptions.of(ctx).evaluation_set
    if text is None:
        return Chosen("scenes") if ctx.pool.is_planted else None
    kind, _, rest = text.partition(":")
    if kind == "split":
        share = _number(rest)
        if share is None or not 0 < share < 1:
            raise ValueError(f"evaluation_set: split:SHARE needs a share in (0, 1) such as split:0.1, got {text!r}")
        return Chosen("split", share=share)
    if kind == "shard":
        if rest not in ctx.shards():
            raise ValueError(f"evaluation_set: the pool has no shard {rest!r}; it has {few(ctx.shards(), 5) or 'none'}")
        return Chosen("shard", shard=rest)
    path = Path(text).expanduser()
    if not path.exists():
        raise ValueError(
            f"evaluation_set: {text!r} is neither split:SHARE nor shard:KEY, and no file or folder lies there"
        )
    return Chosen("path", path=path)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def untrained_reason(ctx: PoolContext) -> str | None:
    """Why no model is trained on the pool's subsets, and what to set; None where models are trained."""
    declaration = (
        f"pools/{ctx.pool.name}.yaml of the home"  # no path: the sentence is part of tables and of their versions
    )
    if not ctx.trains_downstream:
        return (
            "No models are trained on this pool's subsets. To train and measure some, set options: {downstream: true, "
            f"evaluation_set: split:0.1}} in {declaration}; docs/user/evaluation.md lists what a set may be"
        )
    if chosen_set(ctx) is None:
        return (
            "No models are trained on this pool's subsets: it has no evaluation set to measure them on. Set "
            f"options: {{evaluation_set: split:0.1}} (images held out), shard:KEY or the path of a set in {declaration}"
        )
    return None


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of a pool that trains models: images to measure them, held-out rows, training sets."""
    chosen = chosen_set(ctx) if ctx.trains_downstream else None
    if chosen is None:
        return
    scenes: tuple[str, ...] = ()
    if chosen.kind == "scenes":
        scenes = (SCENES,)
        yield Table(
            name=SCENES,
            grain="pool",
            inputs=(),
            version="1",
            description="Clean scenes that no pool has, with five captions each, as a webdataset tar.",
            compute=Folder(_write_scenes),
            config=lambda ctx: {"images": image_limit(ctx), "seed": SCENE_SEED},
            shown=Shown(kinds=("webdataset",)),
        )
    yield Table(
        name=EVALUATION_SET,
        grain="pool",
        inputs=(SAMPLES, *scenes) if chosen.kind != "scenes" else scenes,
        version="1",
        compute=lambda ctx: _evaluation_set(ctx, chosen),
        config=lambda ctx: _config(ctx, chosen),
        description=f"One row per image that trained models are measured on, with its captions: {chosen.description}.",
    )
    yield Table(
        name=HELD_OUT,
        grain="pool",
        inputs=(SAMPLES, EVALUATION_SET),
        version="1",
        compute=lambda ctx: _held_out(ctx, chosen),
        config=lambda ctx: _config(ctx, chosen),
        description=(
            "One row per row of the pool that no model is trained on: held out for the evaluation set, or showing one "
            "of its images (the same file)."
        ),
    )
    yield from training_tables(ctx)


def image_limit(ctx: PoolContext) -> int:
    """Images of the evaluation set at most."""
    options = DownstreamOptions.of(ctx)
    default = DEFAULT_SCENES if ctx.pool.is_planted and options.evaluation_set is None else DEFAULT_IMAGES
    return options.evaluation_images or default


def _config(ctx: PoolContext, chosen: Chosen) -> dict[str, Any]:
    config: dict[str, Any] = {"set": DownstreamOptions.of(ctx).evaluation_set, "images": image_limit(ctx)}
    return config | ({"digest": _digest(chosen.path)} if chosen.kind == "path" else {})


def _digest(path: Path) -> str:
    """Hash over the files of a set: contents of tars and lists, names and sizes of single images."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    facts = []
    for file in files:
        is_image = file.suffix.lower() in IMAGE_SUFFIXES
        facts.append([str(file.relative_to(path)), file.stat().st_size if is_image else file_sha256(file)])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _write_scenes(ctx: PoolContext, folder: Path) -> None:
    from curation_assets.world.pool import plant_evaluation_scenes

    with tarfile.open(folder / SCENES_TAR, "w") as tar:
        for number, (image, captions) in enumerate(plant_evaluation_scenes(image_limit(ctx), SCENE_SEED)):
            pixels = io.BytesIO()
            image.save(pixels, format="PNG")
            text = json.dumps({"captions": captions}, ensure_ascii=False)
            for extension, data in (("png", pixels.getvalue()), ("txt", captions[0].encode()), ("json", text.encode())):
                add_member(tar, f"scene-{number:06d}.{extension}", data)


def _evaluation_set(ctx: PoolContext, chosen: Chosen) -> pl.DataFrame:
    limit = image_limit(ctx)
    if chosen.kind in ("split", "shard"):
        frame = _of_pool(ctx, chosen).head(limit)
    else:
        path = ctx.store.folder_path(SCENES) / SCENES_TAR if chosen.kind == "scenes" else chosen.path
        listed = read_evaluation_set(path, limit=limit)
        rows = [_row(ctx, image, is_scene=chosen.kind == "scenes") for image in listed.images if image.captions]
        frame = pl.DataFrame(rows, schema=EVALUATION_SCHEMA)
    reasons = [_undecodable(ctx, row) for row in frame.to_dicts()]
    frame = frame.with_columns(pl.Series("reason", reasons, dtype=pl.String)).cast(EVALUATION_SCHEMA)
    usable = frame["reason"].is_null().sum()
    if usable < 2:
        raise ValueError(
            f"evaluation_set: {chosen.description} has {frame.height} images with captions, {usable} of which can be "
            "decoded; expected two at least"
        )
    return frame


def _undecodable(ctx: PoolContext, row: dict[str, Any]) -> str | None:
    try:
        evaluation_image(ctx, row)
    except ImageRejected as rejected:
        return rejected.reason
    return None


def evaluation_rows(ctx: PoolContext) -> pl.DataFrame:
    """The images that are measured on. Raises MissingTableError before the set is made."""
    return ctx.store.read(EVALUATION_SET).filter(pl.col("reason").is_null())


def _row(ctx: PoolContext, image: EvaluationImage, *, is_scene: bool) -> dict[str, Any]:
    facts = {"image_id": image.image_id, "captions": list(image.captions), "image_sha256": None, "reason": None}
    if is_scene:
        return {**facts, "tar": f"{SCENES}/{SCENES_TAR}", "member": image.member, "path": None}
    data = Path(image.path).read_bytes() if image.path else read_member(Path(str(image.tar)), str(image.member))
    digest = hashlib.sha256(data).hexdigest()
    return {**facts, "tar": image.tar, "member": image.member, "path": image.path, "image_sha256": digest}


def held_out_rows(ctx: PoolContext, chosen: Chosen) -> pl.LazyFrame:
    """Rows of raw/samples that a split or a shard holds out: those it would measure on, kept or not clean."""
    samples = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept")
    if chosen.kind == "shard":
        return samples.filter(pl.col("shard") == chosen.shard)
    return samples.filter(
        pl.coalesce("image_sha256", "sample_id").map_elements(
            lambda text: _draw(text) < chosen.share, return_dtype=pl.Boolean
        )
    )


def _draw(text: str) -> float:
    digits = text if is_sample_id(text) else hashlib.sha256(text.encode()).hexdigest()[:32]
    return unit_interval_of(digits, "evaluation_split")


def _of_pool(ctx: PoolContext, chosen: Chosen) -> pl.DataFrame:
    """Held-out images with all their captions; of a pool with a truth only clean samples."""
    rows = held_out_rows(ctx, chosen).filter(pl.col("has_image")).collect()
    if has_truth(ctx):
        clean = read_truth(ctx).filter(pl.col("kind") == "clean").select("sample_id")
        rows = rows.join(clean, on="sample_id", how="semi", maintain_order="left")
    rows = rows.with_columns(pl.coalesce("image_sha256", "sample_id").alias("image_id")).sort("image_id", "sample_id")
    grouped = rows.group_by("image_id", maintain_order=True).agg(
        pl.col("tar", "member", "image_sha256").first(), pl.col("caption").unique(maintain_order=True).alias("captions")
    )
    nothing = (pl.lit(None, pl.String).alias(name) for name in ("path", "reason"))
    return grouped.with_columns(*nothing).select(EVALUATION_SCHEMA.names())


def _held_out(ctx: PoolContext, chosen: Chosen) -> pl.DataFrame:
    columns = ["shard", "source_row"]
    parts = []
    if chosen.kind in ("split", "shard"):
        parts.append(held_out_rows(ctx, chosen).select(*columns, pl.lit("held_out").alias("why")).collect())
    digests = ctx.store.read(EVALUATION_SET)["image_sha256"].drop_nulls().unique()
    same = pl.col("image_sha256").is_in(digests.implode()) | pl.col("original_sha256").is_in(digests.implode())
    shown = ctx.store.scan(SAMPLES).filter((pl.col("status") == "kept") & same)
    parts.append(shown.select(*columns, pl.lit("same_image").alias("why")).collect())
    both = pl.concat(parts).cast(HELD_OUT_SCHEMA)
    return both.unique(columns, keep="first", maintain_order=True).sort(columns)


def evaluation_image(ctx: PoolContext, row: dict[str, Any]) -> Any:
    """The RGB image of a row of the table. Raises ImageRejected."""
    tar = None if row["tar"] is None else str(ctx.store.root / row["tar"])
    image = EvaluationImage(row["image_id"], tuple(row["captions"]), row["path"], tar, row["member"])
    return load_image(image, ctx.pool.download.limits)
