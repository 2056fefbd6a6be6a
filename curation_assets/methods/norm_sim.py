"""NormSim: how near an image is to target images, such as those of the downstream task."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from curation_assets.core.table_names import TARGET_IMAGES
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.methods.neg_clip_loss import vectors_of
from curation_assets.numeric.contrast import largest_cosine, variance_alignment


@dataclass(frozen=True)
class TargetImages:
    """Embeddings of the target images by the pool's encoder."""

    embeddings: np.ndarray  # (T, D) float32, unit rows

    @cached_property
    def covariance(self) -> np.ndarray:
        """(D, D) float64: TᵀT / T, not centred."""
        vectors = self.embeddings.astype(np.float64)
        return vectors.T @ vectors / len(vectors)


def read_target_images(columns: Columns) -> TargetImages:
    """The images of a column image_embedding. Raises ValueError for another table or no rows."""
    if not columns.get("image_embedding"):
        raise ValueError(f"a table of target images needs rows of image_embedding, got {sorted(columns)}")
    return TargetImages(vectors_of(columns["image_embedding"]))


def norm_sim(
    image_embedding: Sequence[Sequence[float]], targets: TargetImages | None = None, p: float | str = "inf"
) -> Values:
    """‖T f‖_p for the (T, D) target embeddings: p "inf" the largest cosine, p 2 the root of the sum of squares.

    Wang et al. 2024 (arXiv 2405.19547) §3.2; formulas.md §15.2. A pool's targets are its table
    signals/target_images; elsewhere the setting `path` names such a table. No targets: reason `no_target_images`.
    Raises ValueError for another p.
    """
    if str(p) not in ("inf", "2"):
        raise ValueError(f"norm_sim knows p: inf and p: 2, got {p!r}")
    if targets is None:
        return Values(np.full(len(image_embedding), np.nan), ["no_target_images"] * len(image_embedding))
    if not len(image_embedding):
        return Values.of(np.zeros(0))
    images = vectors_of(image_embedding)
    if str(p) == "inf":
        return Values.of(largest_cosine(images, targets.embeddings))
    return Values.of(np.sqrt(len(targets.embeddings) * variance_alignment(images, targets.covariance)))


METHOD = Method(
    function=norm_sim,
    unit="largest cosine (p = inf), or root of the sum of squared cosines (p = 2)",
    bounds=(-1.0, float("inf")),
    source="Wang et al. 2024 (arXiv 2405.19547) §3.2; formulas.md §15.2",
    summary="Cosine of the image with the nearest target image; with p = 2 the norm of its cosines with all of them.",
    made_for=("text_only",),
    file_settings={"path": FileSetting("targets", read_target_images, table=TARGET_IMAGES)},
    example=Example(
        columns={"image_embedding": [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]},
        value=[1.0, 0.8, 0.96],  # .8 · 0 + .6 · 1 < −.6 · 0 + .8 · 1; .6 · .8 + .8 · .6
        settings={"targets": TargetImages(np.array([[1.0, 0.0], [0.8, 0.6], [-0.6, 0.8]], dtype=np.float32))},
    ),
)
