"""How many kinds of objects a detector sees: an image without any shows words, patterns or nothing."""

from collections.abc import Sequence

import numpy as np

from curation_assets.methods import Example, Method, Values


def object_count(detected_objects: Sequence[Sequence[str]]) -> Values:
    """Different labels among the detections, from the detector's own threshold on. formulas.md §15.6.

    EcoDatum counts the boxes of an open-vocabulary detector (Grounding DINO, confidence above .3). A detector of a
    closed list counts nothing that its list lacks.
    """
    return Values.of(np.array([float(len(set(labels))) for labels in detected_objects]))


METHOD = Method(
    function=object_count,
    unit="different labels",
    bounds=(0.0, float("inf")),
    source="EcoDatum (Xu et al. 2025, arXiv 2502.08211), labels in place of boxes; formulas.md §15.6",
    summary="Number of different labels that the object detector finds in the image.",
    made_for=("text_only",),
    example=Example(columns={"detected_objects": [["dog", "kite"], [], ["dog"]]}, value=[2.0, 0.0, 1.0]),
)
