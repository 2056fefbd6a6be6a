"""Separation of clean samples from each planted kind of noise, and which kinds a method was made for."""

from collections.abc import Mapping
from types import MappingProxyType

#: Method → planted kinds that it was made to tell from clean samples. The only place that knows both: methods know no
#: kinds, and the planted truth no methods. A method that is not listed is shown without a verdict.
MADE_FOR: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ave_clip": ("abstract",),
        "clip_score": ("mismatched",),
        "clip_score_metric": ("mismatched",),
        "clip_stroop": ("abstract",),
        "complexity_action": ("short",),
        "conceptual_captions": ("boilerplate", "caps", "repetition", "foreign"),
        "concreteness_lexicon": ("abstract",),
        "datacomp_basic": ("odd_size", "short", "foreign"),
        "datacomp_caption": ("short", "foreign"),
        "icc": ("abstract", "partial", "boilerplate"),
        "image_based": ("text_only",),
        "laion_filter": ("mismatched", "foreign"),
        "sieve": ("mismatched", "abstract", "boilerplate"),
        "sieve_clip": ("mismatched", "abstract", "boilerplate"),
        "text_spotting": ("text_only",),
        "tmars": ("mismatched", "text_only"),
    }
)
SEPARATES, PARTLY = 0.8, 0.65  # smallest AUC that is called so


def verdict_of(method: str, kind: str, auc: float) -> str | None:
    """'separates' (AUC ≥ .8), 'partly' (≥ .65) or 'does not', for a kind that the method was made for; else None."""
    if kind not in MADE_FOR.get(method, ()):
        return None
    return "separates" if auc >= SEPARATES else "partly" if auc >= PARTLY else "does not"
