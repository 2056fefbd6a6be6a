"""Trainers that learn from images: what a `Task` becomes for a captioner and a dual encoder, miniature or full size."""

from dataclasses import replace
from typing import Any, TypeVar

import polars as pl

from curation_assets.evaluation.models.pixel_models import (
    CaptionerSpec,
    DualEncoderSpec,
    train_pixel_captioner,
    train_pixel_dual_encoder,
)
from curation_assets.evaluation.trainers import Task, metrics_frame, recalls

Spec = TypeVar("Spec", CaptionerSpec, DualEncoderSpec)


def captions_of_task(task: Task, spec: CaptionerSpec) -> pl.DataFrame:
    """A caption per evaluation image, of a captioner trained on the task's images."""
    captioner = train_pixel_captioner(_of_batch(spec, task), **_data(task))
    captions = captioner.generate(task.evaluation.load, len(task.evaluation))
    return pl.DataFrame({"caption": captions}, schema={"caption": pl.String})


def recalls_of_task(task: Task, spec: DualEncoderSpec) -> pl.DataFrame:
    """recall@k both ways on the evaluation set, of a dual encoder trained on the task's images."""
    model = train_pixel_dual_encoder(_of_batch(spec, task), **_data(task))
    images = model.embed_images(task.evaluation.load, len(task.evaluation))
    return metrics_frame(recalls(images, model.embed_texts(task.evaluation.texts), task.evaluation.captions))


def _of_batch(spec: Spec, task: Task) -> Spec:
    return replace(spec, batch_size=task.budget["batch_size"])


def _data(task: Task) -> dict[str, Any]:
    training = task.training
    given = {"load": training.load, "captions": training.texts, "images_digest": training.digest}
    return given | task.settings
