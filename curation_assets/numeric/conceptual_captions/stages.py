"""The order of the rules, the first one that drops a candidate, and how many each of them dropped."""

from collections import Counter
from collections.abc import Callable, Iterable

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
RULES = (
    *("boilerplate", "too_short", "too_long", "no_determiner", "no_noun", "no_preposition", "no_verb"),
    *("high_noun_ratio", "low_unique_ratio", "repetition", "first_word_lower_case", "capitalised"),
    *("rare_word", "extreme_polarity", "profanity"),
)


def first_drop(candidate: Candidate, limits: Limits) -> Drop | None:
    """The first rule that drops the candidate, None where it passes them all."""
    return next((drop for check in CHECKS if (drop := check(candidate, limits)) is not None), None)


def rule_counts(rules: Iterable[str | None]) -> dict[str, int]:
    """How many candidates each rule dropped, in the order of the rules, with `passed` last; they add up to all.

    Raises ValueError for a rule that does not exist.
    """
    counted = Counter("passed" if rule is None else rule for rule in rules)
    unknown = sorted(set(counted) - {*RULES, "passed"})
    if unknown:
        raise ValueError(f"expected rules of {', '.join(RULES)}, got {unknown}")
    return {rule: counted[rule] for rule in (*RULES, "passed") if counted[rule] or rule == "passed"}
