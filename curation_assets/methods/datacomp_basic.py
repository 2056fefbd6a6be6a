"""DataComp's basic filtering: an English caption that is long enough, an image that is large enough and not a strip."""

from collections.abc import Sequence

from curation_assets.core.roles import LanguageIdentifier, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier, datacomp_caption
from curation_assets.numeric.datacomp import MAX_ASPECT_RATIO, MIN_SIDE_PX, broken_size_rule


def datacomp_basic(
    caption: Texts,
    original_width: Sequence[int],
    original_height: Sequence[int],
    language_identifier: LanguageIdentifier,
    min_side_px: int = MIN_SIDE_PX,
    max_aspect_ratio: float = MAX_ASPECT_RATIO,
) -> Values:
    """1 where caption and image pass, else 0. DataComp §3.2, formulas.md §3.2.

    Caption rules as in `datacomp_caption`, then shorter side ≥ `min_side_px` and longer ÷ shorter ≤ `max_aspect_ratio`
    of the image as it was before any resizing (a pool of small images only needs a smaller `min_side_px`). Details:
    rule (the first broken one), rule_value, language, language_probability. Raises ValueError for limits below 1.
    """
    values = datacomp_caption(caption, language_identifier)
    sizes = zip(original_width, original_height, strict=True)
    for i, broken in enumerate(broken_size_rule(w, h, min_side_px, max_aspect_ratio) for w, h in sizes):
        if broken is not None and values.value[i]:
            values.value[i] = 0.0
            values.details["rule"][i], values.details["rule_value"][i] = broken.rule, float(broken.value)
    return values


METHOD = Method(
    function=datacomp_basic,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="DataComp (Gadre et al. 2023) §3.2, basic filtering; formulas.md §3.2",
    summary="1 where caption and image pass DataComp's basic rules of language, caption length and image size, else 0.",
    made_for=("odd_size", "short", "foreign"),
    known_limits={"short": "planted short captions have talk after them: more than two words"},
    example=Example(
        columns={
            "caption": ["a red kite", "a red kite", "a red kite", "kite", "der rote Drachen"],
            "original_width": [600, 199, 601, 10, 600],
            "original_height": [200, 400, 200, 10, 600],
        },
        value=[1.0, 0.0, 0.0, 0.0, 0.0],  # just large enough, ratio 3; 199 px; ratio 3.005; one word; German
        roles={"language_identifier": ExampleIdentifier()},
    ),
)
