"""Zero-shot classification: a classifier from embedded templates, and accuracies with ties against the model."""

from collections.abc import Sequence

import numpy as np

from curation_assets.numeric.metrics.retrieval import blocks_of_rows, rank_in_rows

#: CLIP's template where a data set has none of its own (Radford et al. 2021 §3.1.4 has "a photo of a {label}.").
SIMPLE_TEMPLATE = "a photo of a {}."


def class_embeddings(text_embeddings: np.ndarray) -> np.ndarray:
    """(C, T, D) unit embeddings of each class in T templates → (C, D): their mean, of unit length again.

    Radford et al. 2021 §3.1.4. Raises ValueError for another shape, or a class whose templates cancel out.
    """
    texts = np.asarray(text_embeddings, dtype=np.float64)
    if texts.ndim != 3 or not texts.shape[1]:
        raise ValueError(f"expected embeddings (C, T, D) of at least one template, got {texts.shape}")
    means = texts.mean(axis=1)  # (C, D)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ValueError(f"class {int(np.argmin(lengths))} has embeddings that are zero or cancel out")
    return np.asarray(means / lengths)


def zero_shot_metrics(
    image_embeddings: np.ndarray, classifier: np.ndarray, labels: Sequence[int] | np.ndarray
) -> dict[str, float]:
    """acc1, acc5 (with more than 5 classes) and mean_per_class_recall, each in [0, 1].

    By cosines of (N, D) unit embeddings and (C, D) classes, in float64, by blocks of images; `labels` (N,) in
    0 … C - 1. A wrong class that scores as high as the right one goes before it, so that constant scores get 0.
    mean_per_class_recall: mean of acc1 over the classes that occur (scikit-learn's balanced accuracy). Raises
    ValueError for bad shapes, labels, or numbers that are not finite.
    """
    images, classes = np.asarray(image_embeddings), np.asarray(classifier, dtype=np.float64)
    if images.ndim != 2 or classes.ndim != 2 or images.shape[1] != classes.shape[1]:
        raise ValueError(f"expected embeddings (N, D) and classes (C, D), got {images.shape}, {classes.shape}")
    if not (np.isfinite(images).all() and np.isfinite(classes).all()):
        raise ValueError("embeddings hold NaN or infinity; leave the failed images out and report how many")
    labels = np.asarray(labels)
    if labels.shape != images.shape[:1] or not len(labels):
        shape = (len(images), len(classes))
        raise ValueError(f"expected scores (N, C) and labels (N,) of at least one image, got {shape}, {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(f"labels must be whole numbers in 0 … {len(classes) - 1}")
    ranks = np.empty(len(images), dtype=np.int64)
    for rows in blocks_of_rows(len(images), len(classes)):
        scores = images[rows].astype(np.float64) @ classes.T  # (B, C)
        ranks[rows] = rank_in_rows(scores, labels[rows], scores[np.arange(len(scores)), labels[rows]])
    is_right = ranks == 1  # (N,)
    metrics = {"acc1": float(is_right.mean())}
    if len(classes) > 5:  # five of five are always right
        metrics["acc5"] = float((ranks <= 5).mean())
    _, position = np.unique(labels, return_inverse=True)
    recalls = np.bincount(position, weights=is_right) / np.bincount(position)  # per class that occurs
    return metrics | {"mean_per_class_recall": float(recalls.mean())}
