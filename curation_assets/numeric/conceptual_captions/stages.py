"""The order of the rules, and the first one that drops a candidate."""

from collections.abc import Callable

from curation_assets.numeric.conceptual_captions import Candidate, Drop, Limits
from curation_assets.numeric.conceptual_captions.capitalisation import check_capitalisation
from curation_assets.numeric.conceptual_captions.length import check_length
from curation_assets.numeric.conceptual_captions.part_of_speech import check_classes, check_noun_ratio
from curation_assets.numeric.conceptual_captions.polarity import check_polarity
from curation_assets.numeric.conceptual_captions.profanity import check_profanity
from curation_assets.numeric.conceptual_captions.repetition import check_repetition
from curation_assets.numeric.conceptual_captions.vocabulary import check_vocabulary

#: In this order, after the boiler-plate crop. The order decides the reason, not whether a candidate passes.
CHECKS: tuple[Callable[[Candidate, Limits], Drop | None], ...] = (
    check_length,
    check_classes,
    check_noun_ratio,
    check_repetition,
    check_capitalisation,
    check_vocabulary,
    check_polarity,
    check_profanity,
)


def first_drop(candidate: Candidate, limits: Limits) -> Drop | None:
    """The first rule that drops the candidate, None where it passes them all."""
    return next((drop for check in CHECKS if (drop := check(candidate, limits)) is not None), None)
