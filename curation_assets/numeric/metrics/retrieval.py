"""Retrieval: recall@k between images and captions, both directions, ties counted against the model."""

from collections.abc import Sequence

import numpy as np


def recall_at_k(scores: np.ndarray, caption_image: Sequence[int] | np.ndarray, k: int) -> dict[str, float]:
    """Text→image and image→text recall@k, and their mean. docs/formulas.md §11.

    `scores` (T, I): row per caption, column per image, higher is better; `caption_image` (T,): the one right image of
    each caption. Text→image: share of captions whose image is among the best k. Image→text: share of images with *any*
    of their captions among the best k. The rank is pessimistic: 1 + the wrong items that score at least as high, so
    that constant embeddings get about 0, not 1. Scores in [0, 1].
    Raises ValueError for bad shapes, NaN scores, k < 1, or an image without a caption.
    """
    scores, caption_image = np.asarray(scores, dtype=np.float64), np.asarray(caption_image)
    if scores.ndim != 2 or caption_image.shape != scores.shape[:1]:
        raise ValueError(f"expected scores (T, I) and caption_image (T,), got {scores.shape}, {caption_image.shape}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if np.isnan(scores).any():
        raise ValueError("scores hold NaN; leave the failed captions or images out and report how many")
    text_count, image_count = scores.shape
    if set(caption_image.tolist()) != set(range(image_count)):
        raise ValueError(f"every image 0 … {image_count - 1} needs a caption, and no caption another image")

    right = scores[np.arange(text_count), caption_image]  # (T,)
    image_rank = (scores >= right[:, None]).sum(axis=1)  # (T,) the right image counts itself: 1 + wrong ones
    best = np.full(image_count, -np.inf)
    np.maximum.at(best, caption_image, right)  # (I,) the best own caption of each image
    is_wrong = caption_image[:, None] != np.arange(image_count)[None, :]  # (T, I)
    text_rank = 1 + ((scores >= best[None, :]) & is_wrong).sum(axis=0)  # (I,) other own captions are no rivals
    text_to_image, image_to_text = float((image_rank <= k).mean()), float((text_rank <= k).mean())
    return {
        f"text_to_image_recall@{k}": text_to_image,
        f"image_to_text_recall@{k}": image_to_text,
        f"mean_recall@{k}": (text_to_image + image_to_text) / 2,
    }
