"""Separation of clean samples from each planted kind of noise: the kinds, and the verdict on an AUC."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

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
        "file_name": "the name of a file in place of a caption",
        "duplicate": "a changed copy of another image of the pool, with a caption of its own",
        "dark": "a good pair, the image nearly black",
        "blurred": "a good pair, the image out of focus",
    }
)
SEPARATES, PARTLY = 0.8, 0.65  # smallest AUC of each verdict


def verdict_of(auc: float) -> str:
    """'separates' (AUC ≥ .8), 'partly' (≥ .65) or 'does not', for a kind that a method was made for."""
    if auc >= SEPARATES:
        return "separates"
    return "partly" if auc >= PARTLY else "does not"


def in_order(kinds: Iterable[str]) -> list[str]:
    """Kinds in the order of KINDS, unknown ones after them by name."""
    known = list(KINDS)
    return sorted(set(kinds), key=lambda kind: (known.index(kind) if kind in KINDS else len(known), kind))
