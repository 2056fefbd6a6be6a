"""negCLIPLoss and NormSim: a pair against reference pairs, an image against target images (Wang et al. 2024)."""

import numpy as np

ROWS_AT_ONCE = 8192  # of the reference: 8192 × 256 float64 logits = 16 MiB


def neg_clip_loss(
    images: np.ndarray,
    texts: np.ndarray,
    reference_images: np.ndarray,
    reference_texts: np.ndarray,
    is_in_reference: np.ndarray,
    temperature: float,
) -> np.ndarray:
    """Cosine of a pair, less what it would be worth with others' captions and images. Higher is better.

    Unit rows (N, D), (N, D), references (R, D), (R, D), (N,) bool → (N,) float64. With the pair itself always part of
    the set B (added where `is_in_reference` is False), Wang et al. 2024 (arXiv 2405.19547) §3.1:

        s = f·g − (τ / 2) [log Σ_{j∈B} exp(f·g_j / τ) + log Σ_{j∈B} exp(f_j·g / τ)]

    Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    own = np.einsum("nd,nd->n", images, texts, dtype=np.float64)  # (N,)
    apart = np.where(is_in_reference, -np.inf, own / temperature)  # the pair's own term, where the reference lacks it
    to_texts = log_sum_exp(images, reference_texts, temperature, apart)
    to_images = log_sum_exp(texts, reference_images, temperature, apart)
    return np.minimum(own - temperature / 2 * (to_texts + to_images), 0.0)  # above 0 by rounding alone


def log_sum_exp(rows: np.ndarray, reference: np.ndarray, temperature: float, start: np.ndarray) -> np.ndarray:
    """log(exp(start) + Σ_j exp(row · reference_j / τ)). (N, D), (R, D), (N,) → (N,) float64; a part at a time."""
    total = np.asarray(start, dtype=np.float64)
    for first in range(0, len(reference), ROWS_AT_ONCE):
        logits = (rows @ reference[first : first + ROWS_AT_ONCE].T).astype(np.float64) / temperature  # (N, r)
        highest = logits.max(axis=1, keepdims=True)
        part = np.log(np.exp(logits - highest).sum(axis=1)) + highest[:, 0]
        total = np.logaddexp(total, part)
    return total


def largest_cosine(images: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """NormSim for p = ∞: the cosine with the nearest target. Unit rows (N, D), (T, D), T ≥ 1 → (N,) in [-1, 1]."""
    best = np.full(len(images), -np.inf)
    for first in range(0, len(targets), ROWS_AT_ONCE):
        best = np.maximum(best, (images @ targets[first : first + ROWS_AT_ONCE].T).max(axis=1))
    return best


def variance_alignment(images: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """VAS: fᵀ Σ f, the mean squared cosine with the targets. (N, D), (D, D) → (N,) float64 in [0, 1].

    Wang et al. 2024 (arXiv 2402.02055) §4, Σ = TᵀT / N of N unit targets; NormSim for p = 2 is the root of N times it.
    """
    return np.einsum("nd,de,ne->n", images, covariance, images, dtype=np.float64, optimize=True)
