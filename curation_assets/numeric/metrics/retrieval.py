"""Retrieval: recall@k between images and captions, both directions, ties counted against the model."""

from collections.abc import Iterator, Sequence

import numpy as np

RECALL_AT = (1, 5, 10)
BLOCK_BYTES = 64 * 2**20
TIE = 1e-9  # between cosines in float64, whose rounding is below 1e-12 for any width of ours


def blocks_of_rows(row_count: int, width: int) -> Iterator[slice]:
    """Slices that cover `row_count` rows: each as many rows of `width` float64 as BLOCK_BYTES hold, at least one."""
    size = max(1, BLOCK_BYTES // (8 * max(1, width)))
    for start in range(0, row_count, size):
        yield slice(start, min(start + size, row_count))


def rank_in_rows(scores: np.ndarray, right_column: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(B, C) scores → (B,) ranks from 1: 1 + the wrong columns that score at least `right` - TIE.

    `right_column` (B,) and `right` (B,): the column of the right answer in each row, and its score.
    """
    rivals = scores >= (right - TIE)[:, None]  # (B, C)
    rivals[np.arange(len(scores)), right_column] = False
    return np.asarray(1 + rivals.sum(axis=1))


def retrieval_ranks(
    image_embeddings: np.ndarray, caption_embeddings: np.ndarray, caption_image: Sequence[int] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks from 1: of each caption's image among the images, (T,), and of each image's best caption among all, (I,).

    formulas.md §11. By cosines; the rank is pessimistic: 1 + the wrong items that score at least as high, so that
    constant embeddings get recalls of about 0, not 1. `image_embeddings` (I, D) and `caption_embeddings` (T, D), unit
    length; `caption_image` (T,): the one right image of each caption. In float64, by blocks of captions: COCO's
    25,000 × 5,000 take 1 GB at once and 64 MiB so. Cosines closer than `TIE` are ties: equal embeddings differ by
    rounding, depending on where they stand in a product of matrices.
    Raises ValueError for bad shapes, numbers that are not finite, or an image without a caption.
    """
    images = np.asarray(image_embeddings, dtype=np.float64)
    captions, caption_image = np.asarray(caption_embeddings), np.asarray(caption_image)
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise ValueError(f"expected embeddings (I, D) and (T, D) of one width, got {images.shape}, {captions.shape}")
    if caption_image.shape != captions.shape[:1]:
        raise ValueError(f"expected an image for each of {len(captions)} captions, got {caption_image.shape}")
    if not (np.isfinite(images).all() and np.isfinite(captions).all()):
        raise ValueError("embeddings hold NaN or infinity; leave the failed rows out and report how many")
    if set(caption_image.tolist()) != set(range(len(images))):
        raise ValueError(f"every image 0 … {len(images) - 1} needs a caption, and no caption another image")

    right = np.empty(len(captions))  # (T,)
    for rows in blocks_of_rows(len(captions), images.shape[1]):
        right[rows] = np.einsum("td,td->t", captions[rows].astype(np.float64), images[caption_image[rows]])
    best = np.full(len(images), -np.inf)
    np.maximum.at(best, caption_image, right)  # (I,) the best own caption of each image
    image_rank = np.empty(len(right), dtype=np.int64)  # (T,)
    text_rank = np.ones(len(images), dtype=np.int64)  # (I,)
    for rows in blocks_of_rows(len(right), len(images)):
        scores = captions[rows].astype(np.float64) @ images.T  # (B, I)
        image_rank[rows] = rank_in_rows(scores, caption_image[rows], right[rows])
        rivals = scores >= best - TIE
        rivals[np.arange(len(scores)), caption_image[rows]] = False  # other own captions are no rivals
        text_rank += rivals.sum(axis=0)
    return image_rank, text_rank


def recalls_of_ranks(image_rank: np.ndarray, text_rank: np.ndarray, ks: Sequence[int] = RECALL_AT) -> dict[str, float]:
    """recall@k both ways and their mean, of ranks (T,) and (I,) from 1, in [0, 1]. Raises ValueError for k < 1.

    Text→image: share of captions whose image is among the best k. Image→text: share of images with *any* of their
    captions among the best k.
    """
    recalls: dict[str, float] = {}
    for k in ks:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        text_to_image, image_to_text = float((image_rank <= k).mean()), float((text_rank <= k).mean())
        recalls[f"text_to_image_recall@{k}"] = text_to_image
        recalls[f"image_to_text_recall@{k}"] = image_to_text
        recalls[f"mean_recall@{k}"] = (text_to_image + image_to_text) / 2
    return recalls
