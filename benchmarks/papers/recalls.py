"""Recalls of retrieval: 95 % intervals, and what a random order gets."""

from collections.abc import Sequence

import numpy as np

from curation_assets.numeric.metrics.retrieval import RECALL_AT


def recall_intervals(
    image_rank: np.ndarray,
    text_rank: np.ndarray,
    caption_image: np.ndarray,
    rng: np.random.Generator,
    ks: Sequence[int] = RECALL_AT,
    resamples: int = 1000,
) -> dict[str, tuple[float, float]]:
    """95 % percentile intervals of `recalls_of_ranks`: images are drawn anew with all their captions.

    The candidates stay as they are. Captions of one image are no independent trials, so an interval of a share of
    captions would be too narrow.
    """
    image_count = len(text_rank)
    draws = rng.multinomial(image_count, np.full(image_count, 1 / image_count), size=resamples)  # (R, I)
    captions = np.bincount(caption_image, minlength=image_count)  # (I,)
    intervals = {}
    for k in ks:
        hits = np.bincount(caption_image, weights=image_rank <= k, minlength=image_count)  # (I,) captions that hit
        text_to_image = (draws @ hits) / (draws @ captions)  # (R,)
        image_to_text = (draws @ (text_rank <= k)) / image_count  # (R,)
        drawn = {"text_to_image": text_to_image, "image_to_text": image_to_text}
        drawn["mean"] = (text_to_image + image_to_text) / 2
        for name, values in drawn.items():
            low, high = np.quantile(values, (0.025, 0.975))
            intervals[f"{name}_recall@{k}"] = (float(low), float(high))
    return intervals


def chance_recalls(caption_image: np.ndarray, ks: Sequence[int] = RECALL_AT) -> dict[str, float]:
    """What a random order gets: k of I images, and any of an image's captions among k of T drawn."""
    captions = np.bincount(caption_image)  # (I,)
    image_count, text_count = len(captions), len(caption_image)
    chances = {}
    for k in ks:
        misses = np.ones(image_count)
        for drawn in range(min(k, text_count)):
            misses *= np.maximum(0, text_count - captions - drawn) / (text_count - drawn)
        text_to_image, image_to_text = min(1.0, k / image_count), float(1 - misses.mean())
        chances[f"text_to_image_recall@{k}"] = text_to_image
        chances[f"image_to_text_recall@{k}"] = image_to_text
        chances[f"mean_recall@{k}"] = (text_to_image + image_to_text) / 2
    return chances
