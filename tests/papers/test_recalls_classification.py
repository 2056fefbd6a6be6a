"""Intervals and chance of recalls, and zero-shot classification against slow, obvious twins."""

import numpy as np
import pytest

from benchmarks.papers.classification import class_embeddings, zero_shot_metrics
from benchmarks.papers.recalls import chance_recalls, recall_intervals
from curation_assets.numeric.metrics import retrieval
from curation_assets.numeric.metrics.retrieval import recalls_of_ranks, retrieval_ranks


def _units(rng: np.random.Generator, *shape: int) -> np.ndarray:
    rows = rng.normal(size=shape).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


@pytest.mark.parametrize("width", [3, 64, 513])
def test_constant_embeddings_classify_nothing_whatever_rounding_does(width: int) -> None:
    one = _units(np.random.default_rng(width), 1, width)
    labels = np.arange(37) % 7
    metrics = zero_shot_metrics(np.repeat(one, 37, axis=0), np.repeat(one, 7, axis=0), labels)
    assert metrics == {"acc1": 0.0, "acc5": 0.0, "mean_per_class_recall": 0.0}


def test_chance_is_what_random_orders_get() -> None:
    caption_image = np.array([0, 0, 0, 1, 2, 2])
    rng = np.random.default_rng(5)
    drawn = [
        recalls_of_ranks(*retrieval_ranks(np.eye(3), rng.random((6, 3)), caption_image), (2,)) for _ in range(3000)
    ]
    for name, chance in chance_recalls(caption_image, (2,)).items():
        assert chance == pytest.approx(np.mean([metrics[name] for metrics in drawn]), abs=0.02)
    assert chance_recalls(caption_image, (10,))["image_to_text_recall@10"] == 1.0


def test_intervals_draw_whole_images() -> None:
    """Five captions that hit or miss together are one trial: the interval is that of 100 images, not of 500 texts."""
    caption_image = np.repeat(np.arange(100), 5)
    text_rank = np.where(np.arange(100) < 40, 1, 50)
    image_rank = text_rank[caption_image]
    intervals = recall_intervals(image_rank, text_rank, caption_image, np.random.default_rng(0), (1,))
    low, high = intervals["text_to_image_recall@1"]
    assert (low, high) == pytest.approx((0.304, 0.496), abs=0.015)  # .4 ± 1.96 · √(.4 · .6 / 100)
    assert intervals["image_to_text_recall@1"] == pytest.approx((low, high))


def test_classification_by_hand() -> None:
    scores = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.1, 0.8, 0.7], [0.0, 0.1, 0.2]])
    labels = [0, 0, 1, 1]
    # right, tie (wrong), right, wrong: class 0 half, class 1 half; class 2 does not occur
    assert zero_shot_metrics(scores, np.eye(3), labels) == {"acc1": 0.5, "mean_per_class_recall": 0.5}
    assert zero_shot_metrics(scores[[0, 1, 2]], np.eye(3), [0, 0, 1])["mean_per_class_recall"] == pytest.approx(0.75)


def test_zero_shot_equals_the_slow_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "BLOCK_BYTES", 8 * 12 * 5)
    rng = np.random.default_rng(1)
    texts = _units(rng, 12, 3, 8)
    classifier = class_embeddings(texts)
    for row, of_class in zip(classifier, texts, strict=True):
        mean = sum(of_class.astype(float)) / 3
        assert row == pytest.approx(mean / np.sqrt((mean**2).sum()))
    labels = rng.integers(0, 11, 60)
    images = classifier[labels] + 0.7 * rng.normal(size=(60, 8))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    top = [sorted(range(12), key=lambda c: -float(images[n] @ classifier[c])) for n in range(60)]
    recalls = [
        np.mean([top[n][0] == label for n in range(60) if labels[n] == label]) for label in sorted(set(labels.tolist()))
    ]
    expected = {
        "acc1": np.mean([top[n][0] == labels[n] for n in range(60)]),
        "acc5": np.mean([labels[n] in top[n][:5] for n in range(60)]),
        "mean_per_class_recall": np.mean(recalls),
    }
    assert zero_shot_metrics(images, classifier, labels) == pytest.approx(expected)
    assert 0 < expected["acc1"] < expected["acc5"] < 1


def test_classification_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="whole numbers in 0 … 2"):
        zero_shot_metrics(np.zeros((2, 3)), np.eye(3), [0, 3])
    with pytest.raises(ValueError, match="NaN"):
        zero_shot_metrics(np.full((2, 3), np.nan), np.eye(3), [0, 1])
    with pytest.raises(ValueError, match=r"labels \(N,\) of at least one image"):
        zero_shot_metrics(np.zeros((0, 3)), np.eye(3), [])
    opposite = np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    with pytest.raises(ValueError, match="class 0 has embeddings that are zero or cancel out"):
        class_embeddings(opposite)
