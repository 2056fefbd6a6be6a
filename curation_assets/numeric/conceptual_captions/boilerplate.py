"""Boiler-plate: crop known beginnings and ends, drop texts that are nothing else."""

import re

from curation_assets.numeric.conceptual_captions import Drop

#: Cropped where a text begins or ends with one of them. The first two are the paper's examples.
CROPPED = (
    *("click to enlarge picture", "stock photo"),
    *("click to enlarge image", "click to enlarge", "click to view larger image", "click for larger image"),
    *("stock photography", "stock image", "stock vector", "stock illustration", "royalty free"),
)
#: A text that begins or ends with one of them is dropped: the paper's examples.
DROPPED = ("embedded image permalink", "profile photo")

_SEPARATORS = r"[\s\-–—|:;,./()\[\]]*"
_WORDS = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in sorted(CROPPED, key=len, reverse=True))
_BEGIN = re.compile(rf"^{_SEPARATORS}\b(?:{_WORDS})\b{_SEPARATORS}", re.IGNORECASE)
_END = re.compile(rf"{_SEPARATORS}\b(?:{_WORDS})\b{_SEPARATORS}$", re.IGNORECASE)
_DROP = re.compile(
    "|".join(rf"^{_SEPARATORS}{phrase}\b|\b{phrase}{_SEPARATORS}$" for phrase in map(re.escape, DROPPED)), re.IGNORECASE
)


def crop_boilerplate(text: str) -> str:
    """The text without boiler-plate at its beginning and end, as often as it stands there.

    "Red kite - Stock Photo" → "Red kite". A text without any comes back as it is, outer blanks stripped.
    """
    text = text.strip()
    while True:
        cropped = _END.sub("", _BEGIN.sub("", text)).strip()
        if cropped == text:
            return text
        text = cropped


def check_boilerplate(original: str, cropped: str) -> Drop | None:
    """`boilerplate` where the original begins or ends with a phrase that disqualifies it, or nothing is left of it.

    The value is the share of characters that the crop removed.
    """
    removed = 1 - len(cropped) / max(1, len(original.strip()))
    match = _DROP.search(original)
    if match is not None:
        return Drop("boilerplate", removed, match.group().strip())
    return Drop("boilerplate", removed, original.strip()) if original.strip() and not cropped else None
