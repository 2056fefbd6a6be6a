"""ICC's dual encoder: ViT-B/16 and BERT-base from their pretrained weights, batch 128 (ICC §5.2)."""

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer


def retrieval_full(task: Task) -> pl.DataFrame:
    """recall@k both ways."""
    from curation_assets.evaluation.models.pixel_models import DualEncoderSpec
    from curation_assets.evaluation.models.pixel_training import recalls_of_task

    return recalls_of_task(task, DualEncoderSpec())


TRAINER = Trainer(
    name="retrieval_full",
    train=retrieval_full,
    gives="metrics",
    reads="images",
    budget={"samples_seen": 2_000_000, "batch_size": 128},
    shown_metrics=("text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5"),
    measures="recall@k both ways of ViT-B/16 and BERT-base (ICC's dual encoder; wants a GPU and the hub)",
    is_default=False,
)
