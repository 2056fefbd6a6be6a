"""Columns that a model makes of each image, once, for every method that reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.roles import Images
from curation_assets.methods import Columns, Method, Values
from curation_assets.numeric.identity import seed_of
from curation_assets.scoring.batches import (
    DEFAULT_BATCH,
    ContractError,
    LoadImage,
    Progress,
    Steps,
    evaluate,
    result_of,
    row_identity,
    series_of,
)
from curation_assets.scoring.options import DEFAULT_CAPTION_COUNT
from curation_assets.stores.saved_rows import SavedRows


@dataclass(frozen=True)
class DerivedColumn:
    """A column that a model makes of each image, once, for every method that reads it.

    `derive`: (columns of a batch, engine, **settings) → column name → one entry per sample, its own and the further
    ones. An entry depends on its own image and sample_id alone.
    """

    role: str | None  # whose engine makes it; None: no model is needed
    derive: Callable[..., Columns]
    dtype: pl.DataType
    description: str  # of the table: first sentence states the grain
    further: Mapping[str, pl.DataType] = field(default_factory=dict)  # columns that come with it, and their types
    settings: Mapping[str, int] = field(
        default_factory=dict
    )  # of `derive`, at least 1 each → values where none are set
    options: Mapping[str, str] = field(default_factory=dict)  # setting → the pool's option that sets it
    is_always_made: bool = False  # a pool has its table even where no method reads it
    kinds: tuple[str, ...] = ("polars",)  # of the table, as Dagster shows it


def derive_column(
    name: str,
    samples: pl.DataFrame,
    engine: Any,
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
    **settings: int,
) -> pl.DataFrame:
    """A column of DERIVED_COLUMNS for every sample: sample_id, the column and its further ones, reason.

    They are null with a reason where there is no image. Rows as in `score_samples`. `settings`: the column's own, such
    as count=8 of generated_captions. Raises TypeError for a setting that the column does not have, ValueError for one
    below 1, BrokenEngineError when the engine fails on everything.
    """
    steps = derive_in_steps(
        name, samples, engine, settings, load_image=load_image, batch_size=batch_size, progress=progress
    )
    return result_of(steps)


def derive_in_steps(
    name: str,
    samples: pl.DataFrame,
    engine: Any,
    settings: Mapping[str, int],
    *,
    load_image: LoadImage | None,
    batch_size: int,
    progress: Progress | None = None,
    saved: SavedRows | None = None,
) -> Steps[pl.DataFrame]:
    """What `derive_column` returns, batch by batch; `saved` as in `score_samples`."""
    column = DERIVED_COLUMNS[name]
    unknown = sorted(set(settings) - set(column.settings))
    if unknown:
        raise TypeError(f"column {name!r} has no settings {unknown}; it has {sorted(column.settings) or 'none'}")
    for setting, value in settings.items():
        if value < 1:
            raise ValueError(f"{setting} must be at least 1, got {value}")
    settings = {**column.settings, **settings}

    def derive_batch(columns: Columns) -> Values:
        return Values.of(np.zeros(len(columns["image"])), **column.derive(columns, engine, **settings))

    types = {name: column.dtype, **column.further}
    values = yield from evaluate(
        samples,
        ("image", "sample_id"),
        derive_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label=f"role {column.role!r}" if column.role else name,
        saved=saved,
        detail_types=types,
    )
    missing = [None] * samples.height
    return row_identity(samples).with_columns(
        *(series_of(part, values.details.get(part, missing), dtype) for part, dtype in types.items()),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


def vectors_of(column: pl.Series) -> np.ndarray:
    """(N, D) float32 of a column of lists, without a Python number per value. Raises ValueError for unequal lengths."""
    lists = column.cast(pl.List(pl.Float32))
    widths = lists.list.len().unique().to_list()
    if len(widths) > 1:
        raise ValueError(f"{column.name} has vectors of {sorted(widths)} numbers; materialise its table again")
    return lists.explode().to_numpy().reshape(len(column), -1)


def _generated_captions(columns: Columns, captioner: Any, *, count: int) -> Columns:
    """Seeds come from the sample_ids, so that captions depend on their own image and id only."""
    seeds = [seed_of(sample_id, "generated_captions") for sample_id in columns["sample_id"]]
    captions = captioner.sample_captions(columns["image"], seeds, count)
    short = [texts for texts in captions if len(texts) != count]
    if len(captions) != len(seeds) or short:
        raise ContractError(
            f"the captioner must return {count} captions for each of {len(seeds)} images; "
            f"got {len(captions)} lists, {len(short)} of another length"
        )
    return {"generated_captions": captions}


def _detected_objects(columns: Columns, detector: Any) -> Columns:
    """Distinct labels, best first, equal scores by label. A label's score is that of its best detection."""
    labels, scores = [], []
    for detections in detector.detect_objects(columns["image"]):
        best: dict[str, float] = {}
        for detection in detections:
            best[detection.label] = max(detection.score, best.get(detection.label, detection.score))
        ranked = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))
        labels.append([label for label, _ in ranked])
        scores.append([float(score) for _, score in ranked])
    return {"detected_objects": labels, "detection_scores": scores}


def _text_boxes(columns: Columns, spotter: Any) -> Columns:
    spotted = spotter.spot_text(columns["image"])
    return {"text_boxes": [[{**vars(box), "polygon": list(box.polygon)} for box in boxes] for boxes in spotted]}


def _image_embedding(columns: Columns, encoder: Any) -> Columns:
    return {"image_embedding": list(encoder.embed_images(columns["image"]))}


def _copy_descriptor(columns: Columns, descriptor: Any) -> Columns:
    return {"copy_descriptor": list(descriptor.describe_images(columns["image"]))}


def _perceptual_hash(columns: Columns, engine: None) -> Columns:
    from curation_assets.numeric.perceptual_hash import perceptual_hashes

    return {"perceptual_hash": perceptual_hashes(columns["image"])}


PDQ_QUALITY = 50  # of 100: below, PDQ's authors advise not to compare (flat images)


def pdq_hashes(images: Images) -> list[str]:
    """PDQ hashes of RGB images, 256 bits as 64 hex digits each; '' of an image too flat to compare."""
    import pdqhash

    made = [pdqhash.compute(np.asarray(image)) for image in images]
    return [
        np.packbits(np.asarray(bits, np.uint8)).tobytes().hex() if quality >= PDQ_QUALITY else ""
        for bits, quality in made
    ]


def _pdq_hash(columns: Columns, engine: None) -> Columns:
    return {"pdq_hash": pdq_hashes(columns["image"])}


#: Column name → how it is made. A method names the column; its pool then has a table `signals/<name>`.
DERIVED_COLUMNS: dict[str, DerivedColumn] = {
    "generated_captions": DerivedColumn(
        "captioner",
        _generated_captions,
        pl.List(pl.String),
        "One row per sample: captions sampled from its image (nucleus), kept for every method that asks.",
        settings={"count": DEFAULT_CAPTION_COUNT},
        options={"count": "caption_count"},
        is_always_made=True,
        kinds=("torch", "polars"),
    ),
    "detected_objects": DerivedColumn(
        "object_detector",
        _detected_objects,
        pl.List(pl.String),
        "One row per sample: labels of the objects in its image, best first, with their scores.",
        further={"detection_scores": pl.List(pl.Float64)},
        kinds=("torch", "polars"),
    ),
    "text_boxes": DerivedColumn(
        "text_spotter",
        _text_boxes,
        pl.List(pl.Struct({"text": pl.String, "confidence": pl.Float64, "polygon": pl.List(pl.Float64)})),
        "One row per sample: boxes of text in its image with what was read in them (OCR).",
    ),
    "image_embedding": DerivedColumn(
        "image_text_encoder",
        _image_embedding,
        pl.List(pl.Float32),
        "One row per sample: the unit vector of its image, for clusters and near-duplicates.",
    ),
    "copy_descriptor": DerivedColumn(
        "copy_descriptor",
        _copy_descriptor,
        pl.List(pl.Float32),
        "One row per sample: the unit vector by which copies of its image are found (SSCD).",
        kinds=("torch", "polars"),
    ),
    "perceptual_hash": DerivedColumn(
        None,
        _perceptual_hash,
        pl.String(),
        "One row per sample: the 64-bit perceptual hash of its image (pHash, 16 hex digits).",
    ),
    "pdq_hash": DerivedColumn(
        None,
        _pdq_hash,
        pl.String(),
        "One row per sample: the 256-bit PDQ hash of its image (64 hex digits), empty for an image too flat for it.",
    ),
}
#: Role that makes a column where the samples lack it.
DERIVING_ROLES: dict[str, str] = {name: column.role for name, column in DERIVED_COLUMNS.items() if column.role}


def with_derived(
    method: Method,
    samples: pl.DataFrame,
    roles: Mapping[str, Any],
    load_image: LoadImage | None,
    batch_size: int,
) -> pl.DataFrame:
    """The samples with the derived columns that the method reads and they lack.

    Raises ValueError for a missing role.
    """
    for name in method.columns:
        if name in samples.columns or name not in DERIVED_COLUMNS:
            continue
        role = DERIVED_COLUMNS[name].role
        if role is not None and role not in roles:
            raise ValueError(f"method {method.name!r} reads {name}: give samples that column, or the role {role}")
        engine = roles[role] if role else None
        made = derive_column(name, samples, engine, load_image=load_image, batch_size=batch_size)
        samples = samples.with_columns(made[name], made["reason"].alias(f"{name}_reason"))
    return samples
