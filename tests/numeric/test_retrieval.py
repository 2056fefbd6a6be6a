"""Retrieval by blocks against slow, obvious twins."""

import numpy as np
import pytest

from curation_assets.numeric.metrics import retrieval
from curation_assets.numeric.metrics.retrieval import recalls_of_ranks, retrieval_ranks


def _units(rng: np.random.Generator, *shape: int) -> np.ndarray:
    rows = rng.normal(size=shape).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def _slow_recalls(images: np.ndarray, captions: np.ndarray, caption_image: np.ndarray, k: int) -> dict[str, float]:
    """Loops over queries and candidates; a candidate that ties goes before the right one."""
    hits = []
    for caption, image in zip(captions, caption_image, strict=True):
        scores = [round(float(np.dot(caption.astype(float), other.astype(float))), 9) for other in images]
        before = [i for i in range(len(images)) if i != image and scores[i] >= scores[image]]
        hits.append(len(before) < k)
    text_to_image = sum(hits) / len(hits)
    hits = []
    for position, image in enumerate(images):
        scores = [round(float(np.dot(image.astype(float), other.astype(float))), 9) for other in captions]
        own = [scores[t] for t in range(len(captions)) if caption_image[t] == position]
        before = [t for t in range(len(captions)) if caption_image[t] != position and scores[t] >= max(own)]
        hits.append(len(before) < k)
    image_to_text = sum(hits) / len(hits)
    return {
        f"text_to_image_recall@{k}": text_to_image,
        f"image_to_text_recall@{k}": image_to_text,
        f"mean_recall@{k}": (text_to_image + image_to_text) / 2,
    }


@pytest.mark.parametrize("block_bytes", [1, 8 * 9 * 4, 2**26])
def test_blocks_equal_the_slow_twin_with_uneven_captions_and_ties(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(retrieval, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(0)
    images = _units(rng, 9, 6)
    images[4] = images[2]  # two equal images: neither is found first
    caption_image = np.concatenate([np.arange(9), rng.integers(0, 9, 20)])
    captions = images[caption_image] + 0.5 * rng.normal(size=(29, 6)).astype(np.float32)
    captions /= np.linalg.norm(captions, axis=1, keepdims=True)
    captions[20] = captions[10]
    expected: dict[str, float] = {}
    for k in (1, 2, 5):
        expected |= _slow_recalls(images, captions, caption_image, k)
    found = recalls_of_ranks(*retrieval_ranks(images, captions, caption_image), (1, 2, 5))
    assert found == pytest.approx(expected)
    assert 0 < found["text_to_image_recall@1"] < found["text_to_image_recall@5"] <= 1


@pytest.mark.parametrize("width", [3, 64, 513])
def test_constant_embeddings_find_nothing_whatever_rounding_does(width: int) -> None:
    one = _units(np.random.default_rng(width), 1, width)
    ranks_of_all = retrieval_ranks(np.repeat(one, 37, axis=0), np.repeat(one, 74, axis=0), np.repeat(np.arange(37), 2))
    assert set(recalls_of_ranks(*ranks_of_all).values()) == {0.0}


def test_embeddings_that_do_not_fit_are_refused() -> None:
    units = _units(np.random.default_rng(0), 3, 4)
    with pytest.raises(ValueError, match=r"one width, got \(3, 4\), \(3, 3\)"):
        retrieval_ranks(units, units[:, :3], [0, 1, 2])
    with pytest.raises(ValueError, match="an image for each of 3 captions"):
        retrieval_ranks(units, units, [0, 1])
    with pytest.raises(ValueError, match="needs a caption"):
        retrieval_ranks(units, units, [0, 1, 1])
    with pytest.raises(ValueError, match="NaN or infinity"):
        retrieval_ranks(units * np.inf, units, [0, 1, 2])
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        recalls_of_ranks(*retrieval_ranks(units, units, [0, 1, 2]), (0,))
