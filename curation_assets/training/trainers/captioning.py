"""A captioner trained on the subset: how well it describes held-out scenes."""

from curation_assets.training.trainers import MINIATURE_BUDGET, Task, Trainer


def captioning(task: Task) -> dict[str, float]:
    """Captioning metrics of a captioner trained on the given samples."""
    from curation_assets.numeric.metrics.captioning import captioning_metrics
    from curation_assets.training.downstream import train_captioner

    steps, batch = task.budget["captioner_steps"], task.budget["captioner_batch"]
    seen = steps * batch
    captioner = train_captioner(task.features, task.captions, seed=task.seed, samples_seen=seen, batch_size=batch)
    return captioning_metrics(task.references, captioner.generate(task.evaluation))


TRAINER = Trainer(
    name="captioning",
    train_and_measure=captioning,
    budget=MINIATURE_BUDGET,
    shown_metrics=("bleu_4", "rouge_l", "cider"),
    measures="captioning metrics (BLEU, ROUGE-L, CIDEr-D) of a captioner",
)
