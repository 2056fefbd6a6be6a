"""negCLIPLoss, NormSim and VAS against numbers worked out by hand and the plain formula over a whole pool."""

import numpy as np
import pytest

from curation_assets.numeric.contrast import largest_cosine, neg_clip_loss, variance_alignment


def unit(rng: np.random.Generator, n: int, d: int = 16) -> np.ndarray:
    vectors = rng.normal(size=(n, d))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def plain(images: np.ndarray, texts: np.ndarray, temperature: float) -> np.ndarray:
    """The published formula, one batch that is the whole pool (K = 1)."""
    similarity = images.astype(np.float64) @ texts.astype(np.float64).T  # (N, N)
    rows = np.log(np.exp(similarity / temperature).sum(axis=1))
    columns = np.log(np.exp(similarity / temperature).sum(axis=0))
    return np.diag(similarity) - temperature / 2 * (rows + columns)


def test_two_pairs_by_hand() -> None:
    """Two orthogonal pairs, τ = 1: each loses log(e + 1) to the set, so 1 − 1.3133."""
    both = np.eye(2, dtype=np.float32)
    value = neg_clip_loss(both, both, both, both, np.array([True, True]), 1.0)
    np.testing.assert_allclose(value, [-0.3132617, -0.3132617], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
def test_the_whole_pool_as_reference_gives_the_plain_formula(temperature: float) -> None:
    rng = np.random.default_rng(3)
    images, texts = unit(rng, 9000), unit(rng, 9000)  # more than one part of the reference
    value = neg_clip_loss(images[:50], texts[:50], images, texts, np.ones(50, bool), temperature)
    few = plain(images, texts, temperature)[:50]
    np.testing.assert_allclose(value, few, atol=1e-5)


def test_a_pair_outside_the_reference_counts_itself_once() -> None:
    rng = np.random.default_rng(4)
    images, texts = unit(rng, 30), unit(rng, 30)
    alone = neg_clip_loss(images[:1], texts[:1], images[1:], texts[1:], np.array([False]), 0.1)
    within = neg_clip_loss(images[:1], texts[:1], images, texts, np.array([True]), 0.1)
    np.testing.assert_allclose(alone, within, atol=1e-6)


def test_the_temperature_is_positive() -> None:
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        neg_clip_loss(*[np.eye(2)] * 4, np.ones(2, bool), 0)


def test_norm_sim_and_vas_by_hand() -> None:
    targets = np.array([[1.0, 0.0], [0.6, 0.8]])
    images = np.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(largest_cosine(images, targets), [1.0, 0.8])
    np.testing.assert_allclose(variance_alignment(images, targets.T @ targets / 2), [0.68, 0.32])
