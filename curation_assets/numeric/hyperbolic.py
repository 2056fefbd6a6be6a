"""Entailment cones in hyperbolic space: how specific a caption is beside reference images (HYPE, Kim et al. 2024)."""

import math

import numpy as np

CONE = 0.1  # K: how wide cones are; MERU's and HYPE's
LARGEST = math.asinh(2.0**15)  # longer tangent vectors are taken for as long; sinh would overflow
TEXTS_AT_ONCE = 256  # × 10,000 images in float64 = 20 MiB


def lift(tangent: np.ndarray, curvature: float) -> tuple[np.ndarray, np.ndarray]:
    """Vectors at the origin → points of the hyperboloid: (N, D), c > 0 → (N, D) space and (N,) time, float64.

    The exponential map of MERU (Desai et al. 2023, arXiv 2304.09172) §3: x = sinh(√c ‖v‖) v / (√c ‖v‖), time
    √(1/c + ‖x‖²). Raises ValueError for a curvature that is not positive.
    """
    if not curvature > 0:
        raise ValueError(f"curvature must be positive, got {curvature}")
    tangent = np.asarray(tangent, dtype=np.float64)
    length = math.sqrt(curvature) * np.linalg.norm(tangent, axis=1, keepdims=True)  # (N, 1)
    space = np.sinh(np.minimum(length, LARGEST)) * tangent / np.maximum(length, 1e-8)
    return space, np.sqrt(1 / curvature + np.square(space).sum(axis=1))


def half_aperture(space: np.ndarray, curvature: float) -> np.ndarray:
    """Half the opening of the cone of each point, in radians, (N, D) → (N,) in (0, π/2]: asin(2K / (√c ‖x‖)).

    π/2 up to ‖x‖ = 2K / √c: what lies at the origin entails everything.
    """
    lengths = math.sqrt(curvature) * np.linalg.norm(space, axis=1)
    return np.arcsin(np.minimum(2 * CONE / np.maximum(lengths, 1e-12), 1.0))


def entailment(texts: np.ndarray, images: np.ndarray, curvature: float) -> np.ndarray:
    """How far each image lies outside the cone of each text, in radians. Tangent vectors (N, D), (M, D) → (N, M).

    The exterior angle at the text, π less the angle of the triangle of origin, text and image, less the half aperture:
    0 and below is inside. Not clipped at 0, as HYPE (arXiv 2404.17507) takes it. With ⟨,⟩ the Lorentzian product:
    acos((t_y + t_x c ⟨x,y⟩) / (‖x‖ √((c ⟨x,y⟩)² − 1))) − asin(2K / (√c ‖x‖)).
    """
    space, time = lift(texts, curvature)
    of_images, time_of_images = lift(images, curvature)
    inner = curvature * (space @ of_images.T - np.outer(time, time_of_images))  # (N, M), at most −1
    above = time_of_images[None, :] + time[:, None] * inner
    below = np.linalg.norm(space, axis=1)[:, None] * np.sqrt(np.maximum(np.square(inner) - 1.0, 1e-12))
    exterior = np.arccos(np.clip(above / np.maximum(below, 1e-12), -1.0, 1.0))
    return exterior - half_aperture(space, curvature)[:, None]


def text_specificity(texts: np.ndarray, images: np.ndarray, curvature: float) -> np.ndarray:
    """ε_t of HYPE (Kim et al. 2024, arXiv 2404.17507) §3: the mean entailment of reference images.

    (N, D), (M, D) → (N,) radians in (−π/2, π): a caption that entails most images, because it tells little, is low; one
    that fits few is high. Raises ValueError for no images.
    """
    if not len(images):
        raise ValueError("text specificity needs reference images, got none")
    means = [np.zeros(0)]
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        means.append(entailment(texts[start : start + TEXTS_AT_ONCE], images, curvature).mean(axis=1))
    return np.concatenate(means)
