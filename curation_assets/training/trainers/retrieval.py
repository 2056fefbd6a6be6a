"""A dual encoder trained on the subset: how well it finds held-out images by caption and captions by image."""

import numpy as np

from curation_assets.training.trainers import MINIATURE_BUDGET, Task, Trainer

RECALL_AT = (1, 5, 10)


def retrieval(task: Task) -> dict[str, float]:
    """recall@k both ways of a dual encoder trained on the given samples; one caption per evaluation image."""
    from curation_assets.numeric.metrics.retrieval import recall_at_k
    from curation_assets.training.downstream import train_dual_encoder

    steps, batch = task.budget["dual_encoder_steps"], task.budget["dual_encoder_batch"]
    seen = steps * batch
    model = train_dual_encoder(task.features, task.captions, seed=task.seed, samples_seen=seen, batch_size=batch)
    texts = [of_image[0] for of_image in task.references]
    similarity = model.embed_texts(texts) @ model.embed_images(task.evaluation).T  # (texts, images)
    recalls = [recall_at_k(similarity, np.arange(len(texts)), k) for k in RECALL_AT]
    return {name: value for metrics in recalls for name, value in metrics.items()}


TRAINER = Trainer(
    name="retrieval",
    train_and_measure=retrieval,
    budget=MINIATURE_BUDGET,
    shown_metrics=("text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5"),
    measures="recall@k both ways of a dual encoder",
)
