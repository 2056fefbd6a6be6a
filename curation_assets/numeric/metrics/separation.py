"""Separation of clean samples from each planted kind of noise, and which kinds a method was made for."""

from collections.abc import Iterable, Mapping
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
        "conceptual_captions_image": ("odd_size",),
        "conceptual_captions_overlap": ("mismatched", "abstract"),
        "concreteness_lexicon": ("abstract",),
        "datacomp_basic": ("odd_size", "short", "foreign"),
        "datacomp_caption": ("short", "foreign"),
        "datacomp_text": ("abstract", "foreign"),
        "fused conceptual_captions": (
            "mismatched",
            "abstract",
            "boilerplate",
            "caps",
            "repetition",
            "foreign",
            "odd_size",
        ),
        "icc": ("abstract", "partial", "boilerplate"),
        "icc_clip": ("mismatched", "abstract", "boilerplate"),
        "icc_sieve_clip": ("mismatched", "abstract", "boilerplate"),
        "image_based": ("text_only",),
        "laion_filter": ("mismatched", "foreign"),
        "object_word_quality": ("mismatched", "abstract"),
        "relatedness": ("abstract", "boilerplate"),
        "reward": ("mismatched", "partial", "abstract"),
        "sba": ("abstract",),
        "scene_bank": ("abstract",),
        "sentence_bottleneck": ("abstract",),
        "sieve": ("mismatched", "abstract", "boilerplate"),
        "sieve_clip": ("mismatched", "abstract", "boilerplate"),
        "text_spotting": ("text_only",),
        "tmars": ("mismatched", "text_only"),
        "vba": ("abstract",),
    }
)
#: Methods that no planted kind is made for, and why.
NO_PLANTED_KIND: Mapping[str, str] = MappingProxyType(
    {
        "conceptual_captions_transform": "no planted caption holds names, dates or places with a name",
        "nsfw": "no planted image is unsafe, and no classifier is shipped",
        "personal_data": "no planted caption holds personal data",
    }
)
#: Why a method cannot do well here on a kind that it was made for: what is planted, not the method, is at fault.
KNOWN_LIMITS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("complexity_action", "short"): "captions of scenes seldom have a verb, so few clean ones pass",
        ("datacomp_basic", "short"): "planted short captions have talk after them: more than two words",
        ("datacomp_caption", "short"): "planted short captions have talk after them: more than two words",
        ("datacomp_text", "abstract"): "abstract captions name people and things too",
    }
)
#: What is wrong with the samples of a planted kind, in the order in which tables show them.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "mismatched": "the caption of another scene",
        "abstract": "a caption that nobody could draw",
        "partial": "a caption with one thing of the scene, and talk",
        "fluff": "a good caption with praise before or after it",
        "short": "two or three bare words of the scene, and talk",
        "boilerplate": "what content systems write where nobody writes a caption",
        "text_only": "an image of words alone, quoted by the caption",
        "scene_text": "a good pair, with words written over the image",
        "caps": "a good caption in capitals",
        "repetition": "one phrase, again and again",
        "foreign": "a good caption in another language",
        "medium_phrase": "a good caption with 'a photo of' and the like",
        "odd_size": "a good pair, the image tiny or a strip",
    }
)
SEPARATES, PARTLY = 0.8, 0.65  # smallest AUC that is called so


def verdict_of(method: str, kind: str, auc: float) -> str | None:
    """'separates' (AUC ≥ .8), 'partly' (≥ .65) or 'does not', for a kind that the method was made for; else None."""
    if kind not in MADE_FOR.get(method, ()):
        return None
    return "separates" if auc >= SEPARATES else "partly" if auc >= PARTLY else "does not"


def in_order(kinds: Iterable[str]) -> list[str]:
    """Kinds in the order of KINDS, unknown ones after them by name."""
    known = list(KINDS)
    return sorted(set(kinds), key=lambda kind: (known.index(kind) if kind in KINDS else len(known), kind))
