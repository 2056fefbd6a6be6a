"""DataComp's image-based filtering: an English caption, and an image from a cluster that reference images share."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from curation_assets.core.roles import LanguageIdentifier, Texts
from curation_assets.core.table_names import IMAGE_CLUSTERS
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier, datacomp_caption
from curation_assets.numeric.clusters import nearest_centroid


class Clusters(NamedTuple):
    """Centroids of a pool's images, and how many reference images are nearest to each."""

    centroids: np.ndarray  # (K, D)
    reference_count: np.ndarray  # (K,)


def read_clusters(columns: Columns) -> Clusters:
    """The clusters in columns centroid (lists of numbers) and reference_count; else ValueError."""
    if not {"centroid", "reference_count"} <= set(columns) or not len(columns["centroid"]):
        raise ValueError(f"a table of clusters needs rows of centroid and reference_count, got {sorted(columns)}")
    return Clusters(np.array(columns["centroid"], dtype=np.float32), np.array(columns["reference_count"]))


def image_based(
    caption: Texts,
    image_embedding: Sequence[Sequence[float]],
    language_identifier: LanguageIdentifier,
    clusters: Clusters | None = None,
) -> Values:
    """1 where the caption passes and the image's nearest centroid is one of a reference image too, else 0.

    DataComp §3.2, formulas.md §3.2: nearest by dot product; captions as in `datacomp_caption` with filtering
    image_based.
    A pool's centroids and reference images are its table signals/image_clusters; elsewhere the setting `path` names
    such a table. No clusters: reason `no_clusters`. Details: rule (the first broken one), cluster.
    """
    if clusters is None:
        return Values(
            np.full(len(caption), np.nan),
            ["no_clusters"] * len(caption),
            {"rule": [None] * len(caption), "cluster": [None] * len(caption)},
        )
    broken = datacomp_caption(caption, language_identifier, filtering="image_based").details["rule"]
    if not caption:
        return Values.of(np.zeros(0), rule=[], cluster=[])
    nearest = nearest_centroid(np.array(image_embedding, dtype=np.float32), clusters.centroids)  # (N,)
    unlike = clusters.reference_count[nearest] == 0
    rule = [why or ("unlike_reference" if other else None) for why, other in zip(broken, unlike, strict=True)]
    return Values.of(np.array([float(why is None) for why in rule]), rule=rule, cluster=nearest.tolist())


METHOD = Method(
    function=image_based,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="DataComp (Gadre et al. 2023) §3.2, image-based filtering; formulas.md §3.2",
    summary="1 where the caption passes and the image's nearest cluster is also that of a reference image, else 0.",
    made_for=("text_only",),
    file_settings={"path": FileSetting("clusters", read_clusters, table=IMAGE_CLUSTERS)},
    example=Example(
        columns={
            "caption": ["a red kite", "a red kite", "kite", "der rote Drachen"],
            "image_embedding": [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]],
        },
        value=[1.0, 0.0, 0.0, 0.0],  # shares a cluster; no reference there; one word; German
        roles={"language_identifier": ExampleIdentifier()},
        settings={"clusters": Clusters(np.eye(2), np.array([3, 0]))},
    ),
)
