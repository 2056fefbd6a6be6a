"""VAS: variance alignment score of an image with target images."""

from collections.abc import Sequence

import numpy as np

from curation_assets.core.table_names import TARGET_IMAGES
from curation_assets.methods import Example, FileSetting, Method, Values
from curation_assets.methods.neg_clip_loss import vectors_of
from curation_assets.methods.norm_sim import TargetImages, read_target_images
from curation_assets.numeric.contrast import variance_alignment


def vas(image_embedding: Sequence[Sequence[float]], targets: TargetImages | None = None) -> Values:
    """fᵀ Σ f with Σ = TᵀT / T of the targets' embeddings. Wang et al. 2024 (arXiv 2402.02055) §4; formulas.md §15.3.

    Targets as in `norm_sim`, whose order with p = 2 it has. No targets: reason `no_target_images`.
    """
    if targets is None:
        return Values(np.full(len(image_embedding), np.nan), ["no_target_images"] * len(image_embedding))
    if not len(image_embedding):
        return Values.of(np.zeros(0))
    return Values.of(variance_alignment(vectors_of(image_embedding), targets.covariance))


METHOD = Method(
    function=vas,
    unit="mean squared cosine",
    bounds=(0.0, 1.0),
    source="Wang et al. 2024 (arXiv 2402.02055) §4; formulas.md §15.3",
    summary="Mean squared cosine of the image with the target images: fᵀ Σ f, with Σ their second moment.",
    made_for=("text_only",),
    file_settings={"path": FileSetting("targets", read_target_images, table=TARGET_IMAGES)},
    example=Example(
        columns={"image_embedding": [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]},
        value=[0.68, 0.32, 0.68],  # (1 + .36) / 2, (0 + .64) / 2, (.36 + 1) / 2
        settings={"targets": TargetImages(np.array([[1.0, 0.0], [0.6, 0.8]], dtype=np.float32))},
    ),
)
