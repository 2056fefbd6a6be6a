"""Trainers that learn from images: what a `Task` becomes for a captioner and a dual encoder, miniature or full size."""

from dataclasses import replace

import polars as pl

from curation_assets.training.pixel_models import (
    CaptionerSpec,
    DualEncoderSpec,
    train_pixel_captioner,
    train_pixel_dual_encoder,
)
from curation_assets.training.trainers import Task, metrics_frame, recalls


def captions_of_task(task: Task, spec: CaptionerSpec) -> pl.DataFrame:
    """A caption per evaluation image, of a captioner trained on the task's images."""
    captioner = train_pixel_captioner(
        replace(spec, batch_size=task.budget["batch_size"]),
        task.training.load,
        [caption for (caption,) in task.training.captions],
        samples_seen=task.budget["samples_seen"],
        seed=task.seed,
        images_digest=task.training.digest,
        checkpoint=task.checkpoint,
        device=task.device,
        progress=task.progress,
    )
    captions = captioner.generate(task.evaluation.load, len(task.evaluation))
    return pl.DataFrame({"caption": captions}, schema={"caption": pl.String})


def recalls_of_task(task: Task, spec: DualEncoderSpec) -> pl.DataFrame:
    """recall@k both ways on the evaluation set, of a dual encoder trained on the task's images."""
    model = train_pixel_dual_encoder(
        replace(spec, batch_size=task.budget["batch_size"]),
        task.training.load,
        [caption for (caption,) in task.training.captions],
        samples_seen=task.budget["samples_seen"],
        seed=task.seed,
        images_digest=task.training.digest,
        checkpoint=task.checkpoint,
        device=task.device,
        progress=task.progress,
    )
    captions = task.evaluation.captions
    images = model.embed_images(task.evaluation.load, len(task.evaluation))
    return metrics_frame(
        recalls(images, model.embed_texts([caption for of_image in captions for caption in of_image]), captions)
    )
