"""A miniature dual encoder (ViT and BERT) trained from scratch on images of 64 px."""

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer


def retrieval_pixels(task: Task) -> pl.DataFrame:
    """recall@k both ways."""
    from curation_assets.evaluation.models.pixel_models import MINIATURE_DUAL_ENCODER
    from curation_assets.evaluation.models.pixel_training import recalls_of_task

    return recalls_of_task(task, MINIATURE_DUAL_ENCODER)


TRAINER = Trainer(
    name="retrieval_pixels",
    train=retrieval_pixels,
    gives="metrics",
    reads="images",
    budget={"samples_seen": 19_200, "batch_size": 96},
    shown_metrics=("text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5"),
    measures="recall@k both ways of a miniature dual encoder trained from scratch on images",
    is_default=False,
)
