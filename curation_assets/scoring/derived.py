"""Columns that a model makes of each image, once, for every method that reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.roles import Captioner, ObjectDetector
from curation_assets.methods import Method, Values
from curation_assets.numeric.identity import seed_of
from curation_assets.scoring.batches import DEFAULT_BATCH, ContractError, LoadImage, Progress, evaluate, row_identity
from curation_assets.stores.pools.options import DEFAULT_CAPTION_COUNT


def generate_captions(
    samples: pl.DataFrame,
    captioner: Captioner,
    *,
    count: int = DEFAULT_CAPTION_COUNT,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Captions sampled from every image: sample_id, generated_captions (null with a reason), reason.

    Seeds come from the sample_ids, so a caption depends on its own image and id only. Rows as in `score_samples`.
    Raises ValueError for count < 1, BrokenEngineError when the captioner fails on everything.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")

    def caption_batch(columns: dict[str, list[Any]]) -> Values:
        seeds = [seed_of(sample_id, "generated_captions") for sample_id in columns["sample_id"]]
        captions = captioner.sample_captions(columns["image"], seeds, count)
        short = [found for found in captions if len(found) != count]
        if len(captions) != len(seeds) or short:
            raise ContractError(
                f"the captioner must return {count} captions for each of {len(seeds)} images; "
                f"got {len(captions)} lists, {len(short)} of another length"
            )
        return Values.of(np.zeros(len(seeds)), generated_captions=captions)

    values = evaluate(
        samples,
        ("image", "sample_id"),
        caption_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label="role 'captioner'",
    )
    captions = values.details.get("generated_captions", [None] * samples.height)
    return row_identity(samples).with_columns(
        pl.Series("generated_captions", captions, dtype=pl.List(pl.String)),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


def detect_objects(
    samples: pl.DataFrame,
    object_detector: ObjectDetector,
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Distinct labels of every image, best first: sample_id, detected_objects, detection_scores (lists), reason.

    Both lists are null with a reason where there is no image; an image without a detection has empty ones. The score
    of a label is that of its best detection. Rows as in `score_samples`; raises BrokenEngineError when the detector
    fails on everything.
    """

    def detect_batch(columns: dict[str, list[Any]]) -> Values:
        best: list[dict[str, float]] = []
        for found in object_detector.detect_objects(columns["image"]):
            ranked = sorted(found, key=lambda one: (-one.score, one.label))
            best.append({one.label: one.score for one in reversed(ranked)})
        ordered = [sorted(labels.items(), key=lambda pair: (-pair[1], pair[0])) for labels in best]
        return Values.of(
            np.zeros(len(ordered)),
            detected_objects=[[label for label, _ in pairs] for pairs in ordered],
            detection_scores=[[float(score) for _, score in pairs] for pairs in ordered],
        )

    values = evaluate(
        samples,
        ("image",),
        detect_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label="role 'object_detector'",
    )
    nothing = [None] * samples.height
    return row_identity(samples).with_columns(
        pl.Series("detected_objects", values.details.get("detected_objects", nothing), dtype=pl.List(pl.String)),
        pl.Series("detection_scores", values.details.get("detection_scores", nothing), dtype=pl.List(pl.Float64)),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


@dataclass(frozen=True)
class DerivedColumn:
    """A column that a model makes of each image, once, for every method that asks for it."""

    role: str | None  # who makes it; None: no model is needed
    derive: Callable[[dict[str, list[Any]], Any], list[Any]]  # (columns of a batch, engine) → one entry per sample
    dtype: pl.DataType
    description: str


def derive_column(
    name: str,
    samples: pl.DataFrame,
    engine: Any,
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """A column of DERIVED_COLUMNS for every sample: sample_id, the column (null with a reason), reason.

    Rows as in `score_samples`. Raises BrokenEngineError when the engine fails on everything.
    """
    column = DERIVED_COLUMNS[name]

    def derive_batch(columns: dict[str, list[Any]]) -> Values:
        entries = column.derive(columns, engine)
        return Values.of(np.zeros(len(entries)), **{name: entries})

    values = evaluate(
        samples,
        ("image", "sample_id"),
        derive_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label=f"role {column.role!r}" if column.role else name,
    )
    return row_identity(samples).with_columns(
        pl.Series(name, values.details.get(name, [None] * samples.height), dtype=column.dtype),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


def _perceptual_hashes(columns: dict[str, list[Any]], engine: None) -> list[str]:
    import imagehash

    return [str(imagehash.phash(image)) for image in columns["image"]]  # 8 × 8 bits, 16 hex digits


#: Column name → how it is made. A method names the column; its pool then has a table `signals/<name>`.
DERIVED_COLUMNS: dict[str, DerivedColumn] = {
    "text_boxes": DerivedColumn(
        "text_spotter",
        lambda columns, engine: [
            [{**vars(box), "polygon": list(box.polygon)} for box in boxes]
            for boxes in engine.spot_text(columns["image"])
        ],
        pl.List(pl.Struct({"text": pl.String, "confidence": pl.Float64, "polygon": pl.List(pl.Float64)})),
        "One row per sample: boxes of text in its image with what was read in them (OCR).",
    ),
    "image_embedding": DerivedColumn(
        "image_text_encoder",
        lambda columns, engine: engine.embed_images(columns["image"]).tolist(),
        pl.List(pl.Float32),
        "One row per sample: the unit vector of its image, for clusters and near-duplicates.",
    ),
    "perceptual_hash": DerivedColumn(
        None,
        _perceptual_hashes,
        pl.String(),
        "One row per sample: the 64-bit perceptual hash of its image (pHash, 16 hex digits).",
    ),
}
#: Role that makes a column where the samples lack it.
DERIVING_ROLES: dict[str, str] = {"generated_captions": "captioner", "detected_objects": "object_detector"} | {
    name: column.role for name, column in DERIVED_COLUMNS.items() if column.role
}


def with_derived(
    method: Method,
    samples: pl.DataFrame,
    roles: Mapping[str, Any],
    load_image: LoadImage | None,
    batch_size: int,
) -> pl.DataFrame:
    """The samples with the derived columns that the method asks for and they lack."""
    for name in method.columns:
        role = DERIVING_ROLES.get(name)
        if name in samples.columns or (name not in DERIVED_COLUMNS and role is None):
            continue
        if role is not None and role not in roles:
            raise ValueError(f"method {method.name!r} reads {name}: give samples that column, or the role {role}")
        if name == "generated_captions":
            made = generate_captions(samples, roles["captioner"], load_image=load_image, batch_size=batch_size)
        elif name == "detected_objects":
            made = detect_objects(samples, roles["object_detector"], load_image=load_image, batch_size=batch_size)
        else:
            engine = roles[role] if role else None
            made = derive_column(name, samples, engine, load_image=load_image, batch_size=batch_size)
        samples = samples.with_columns(made[name], made["reason"].alias(f"{name}_reason"))
    return samples
