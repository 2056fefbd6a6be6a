"""A miniature captioner (Swin and GPT-2) trained from scratch on images of 64 px."""

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer


def captioning_pixels(task: Task) -> pl.DataFrame:
    """A caption per evaluation image."""
    from curation_assets.evaluation.models.pixel_models import MINIATURE_CAPTIONER
    from curation_assets.evaluation.models.pixel_training import captions_of_task

    return captions_of_task(task, MINIATURE_CAPTIONER)


TRAINER = Trainer(
    name="captioning_pixels",
    train=captioning_pixels,
    gives="captions",
    reads="images",
    budget={"samples_seen": 14_400, "batch_size": 48},
    shown_metrics=("bleu_4", "rouge_l", "cider"),
    measures="captioning metrics of a miniature captioner trained from scratch on images",
    is_default=False,
)
