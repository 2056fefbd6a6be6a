"""A small dual encoder on frozen patch features: how well it retrieves images by caption and captions by image."""

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer, metrics_frame, recalls


def retrieval(task: Task) -> pl.DataFrame:
    """recall@k both ways on the evaluation set, of a dual encoder trained on the training set."""
    from curation_assets.evaluation.models.miniature import train_dual_encoder

    assert task.training.features is not None
    assert task.evaluation.features is not None
    model = train_dual_encoder(
        task.training.features, task.training.texts, batch_size=task.budget["batch_size"], **task.settings
    )
    texts = model.embed_texts(task.evaluation.texts)
    return metrics_frame(recalls(model.embed_images(task.evaluation.features), texts, task.evaluation.captions))


TRAINER = Trainer(
    name="retrieval",
    train=retrieval,
    gives="metrics",
    reads="features",
    budget={"samples_seen": 3_840, "batch_size": 96},
    shown_metrics=("text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5"),
    measures="recall@k both ways of a dual encoder on frozen patch features",
    version="3",
)
