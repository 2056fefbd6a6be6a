"""CLIP from scratch by open_clip's own trainer, at a size for one CPU; DataComp's scales are `curate evaluate clip`."""

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer, metrics_frame, recalls


def work_folder(task: Task) -> Path:
    """Where a stopped training goes on: another folder for other images, captions or budget, which cannot go on."""
    made_from = [task.training.digest, task.training.texts, dict(task.budget)]
    return task.checkpoint.parent / hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]


def clip(task: Task) -> pl.DataFrame:
    """recall@k both ways on the evaluation set, of a CLIP trained on the training set's tars."""
    from dataclasses import replace

    import numpy as np

    from curation_assets.core.settings import Profile
    from curation_assets.engines import load_engine
    from curation_assets.engines.batches import chunks
    from curation_assets.evaluation.models.open_clip_training import get_scale, train_clip

    folder = work_folder(task)
    scale = replace(get_scale("tiny"), batch_size=task.budget["batch_size"])
    task.write_tars(folder / "tars")
    out = train_clip(
        scale,
        folder / "tars",
        folder / "clip",
        samples_seen=task.budget["samples_seen"],
        seed=task.seed,
        devices=0 if task.device == "cpu" else 1,
        progress=lambda samples: task.progress(samples // scale.batch_size) if task.progress else None,
    )
    profile = Profile(
        name="trained", roles={"image_text_encoder": f"path:{out}"}, device="cpu" if task.device == "cpu" else "cuda"
    )
    encoder: Any = load_engine("image_text_encoder", profile)
    captions = task.evaluation.captions
    parts = [encoder.embed_images(task.evaluation.load(batch)) for batch in chunks(range(len(captions)), 256)]
    texts = encoder.embed_texts(task.evaluation.texts)
    return metrics_frame(recalls(np.concatenate(parts), texts, captions))


TRAINER = Trainer(
    name="clip",
    train=clip,
    gives="metrics",
    reads="images",
    budget={"samples_seen": 6_400, "batch_size": 32},
    shown_metrics=("text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5"),
    measures="recall@k both ways of a CLIP trained from scratch (two layers, 64 px)",
    is_default=False,
)
