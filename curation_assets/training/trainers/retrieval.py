"""A dual encoder trained on the subset: how well it finds held-out images by caption and captions by image."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from curation_assets.training.trainers import MINIATURE_BUDGET, Trainer

RECALL_AT = (1, 5, 10)


def retrieval(
    features: np.ndarray,
    captions: list[str],
    evaluation: np.ndarray,
    references: list[list[str]],
    seed: int,
    budget: Mapping[str, Any],
) -> dict[str, float]:
    """recall@k both ways of a dual encoder trained on the given samples; one caption per evaluation image."""
    from curation_assets.numeric.metrics.retrieval import recall_at_k
    from curation_assets.training.downstream import train_dual_encoder

    steps, batch = budget["dual_encoder_steps"], budget["dual_encoder_batch"]
    model = train_dual_encoder(features, captions, seed=seed, steps=steps, batch_size=batch)
    texts = [of_image[0] for of_image in references]
    similarity = model.embed_texts(texts) @ model.embed_images(evaluation).T  # (texts, images)
    recalls = [recall_at_k(similarity, np.arange(len(texts)), k) for k in RECALL_AT]
    return {name: value for metrics in recalls for name, value in metrics.items()}


TRAINER = Trainer(
    name="retrieval",
    train_and_measure=retrieval,
    budget=MINIATURE_BUDGET,
    shown_metrics=("text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5"),
    measures="recall@k both ways of a dual encoder",
)
