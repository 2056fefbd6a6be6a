"""A captioner trained on the subset: how well it describes held-out scenes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from curation_assets.training.trainers import MINIATURE_BUDGET, Trainer


def captioning(
    features: np.ndarray,
    captions: list[str],
    evaluation: np.ndarray,
    references: list[list[str]],
    seed: int,
    budget: Mapping[str, Any],
) -> dict[str, float]:
    """Captioning metrics of a captioner trained on the given samples (see `TrainAndMeasure` for the shapes)."""
    from curation_assets.numeric.metrics.captioning import captioning_metrics
    from curation_assets.training.downstream import train_captioner

    steps, batch = budget["captioner_steps"], budget["captioner_batch"]
    captioner = train_captioner(features, captions, seed=seed, steps=steps, batch_size=batch)
    return captioning_metrics(references, captioner.generate(evaluation))


TRAINER = Trainer(
    name="captioning",
    train_and_measure=captioning,
    budget=MINIATURE_BUDGET,
    shown_metrics=("bleu_4", "rouge_l", "cider"),
    measures="captioning metrics (BLEU, ROUGE-L, CIDEr-D) of a captioner",
)
