"""Frozen features of the parts of an image, small enough to be stored per sample: what downstream models read."""

from typing import Any

import numpy as np
import torch

from curation_assets.core.roles import Images, PatchEncoder

MAX_WIDTH = 256
MAX_PATCHES = 65  # 65 × 256 × 2 B = 33 kB an image at most
PROJECTION_SEED = 0


def patch_features(encoder: Any, images: Images) -> np.ndarray:
    """(N,) RGB images, at least one → (N, T, D) float16, D ≤ 256, T ≤ 65.

    Wider states are projected by a fixed random matrix with orthonormal columns, which keeps their geometry within a
    few per cent (Johnson and Lindenstrauss 1984); more patches are averaged in neighbouring runs. An encoder without
    patches gives its one embedding, T = 1. A row depends on its own image alone.
    """
    if not isinstance(encoder, PatchEncoder):
        return encoder.embed_images(images)[:, None, :].astype(np.float16)
    states = torch.from_numpy(encoder.embed_patches(images)).float()  # (N, T, D)
    if states.shape[1] > MAX_PATCHES:
        states = torch.nn.functional.adaptive_avg_pool1d(states.transpose(1, 2), MAX_PATCHES).transpose(1, 2)
    if states.shape[2] > MAX_WIDTH:
        states = states @ _projection(states.shape[2])
    return states.half().numpy()


def _projection(width: int) -> torch.Tensor:
    """(width, MAX_WIDTH), orthogonal columns, scaled so that lengths stay what they were on average."""
    normal = np.random.default_rng(PROJECTION_SEED).normal(size=(width, MAX_WIDTH))
    columns, _ = np.linalg.qr(normal)
    return torch.from_numpy(columns * np.sqrt(width / MAX_WIDTH)).float()
