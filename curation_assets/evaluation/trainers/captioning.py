"""A small captioner on frozen patch features: how well it describes images that it never saw."""

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer


def captioning(task: Task) -> pl.DataFrame:
    """A caption per evaluation image, of a captioner trained on the training set."""
    from curation_assets.evaluation.models.miniature import train_captioner

    assert task.training.features is not None
    assert task.evaluation.features is not None
    captioner = train_captioner(
        task.training.features, task.training.texts, batch_size=task.budget["batch_size"], **task.settings
    )
    return pl.DataFrame({"caption": captioner.generate(task.evaluation.features)}, schema={"caption": pl.String})


TRAINER = Trainer(
    name="captioning",
    train=captioning,
    gives="captions",
    reads="features",
    budget={"samples_seen": 2_640, "batch_size": 48},
    shown_metrics=("bleu_4", "rouge_l", "cider"),
    measures="captioning metrics of a captioner on frozen patch features",
    version="3",
)
