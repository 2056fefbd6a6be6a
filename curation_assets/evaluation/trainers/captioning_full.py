"""ICC's captioner: Swin-base and GPT-2 from their pretrained weights, batch 100, 2 M samples seen (ICC §5.2)."""

import polars as pl

from curation_assets.evaluation.trainers import Task, Trainer


def captioning_full(task: Task) -> pl.DataFrame:
    """A caption per evaluation image, by five beams."""
    from curation_assets.evaluation.models.pixel_models import CaptionerSpec
    from curation_assets.evaluation.models.pixel_training import captions_of_task

    return captions_of_task(task, CaptionerSpec())


TRAINER = Trainer(
    name="captioning_full",
    train=captioning_full,
    gives="captions",
    reads="images",
    budget={"samples_seen": 2_000_000, "batch_size": 100},
    shown_metrics=("bleu_4", "rouge_l", "cider"),
    measures="captioning metrics of Swin-base and GPT-2 (ICC's captioner; wants a GPU and the hub)",
    is_default=False,
)
