"""Usage preferences as IETF's AIPREF drafts write them: a Dictionary of RFC 9651 whose key `train-ai` is y or n.

Sources: draft-ietf-aipref-vocab-08 §6 and draft-ietf-aipref-attach-05, drafts still; RFC 9651 §4.2. Content Signals
(contentsignals.org), which say `ai-train=no`, are read here as well.
"""

import re

TRAINING = "train-ai"
_KEY = r"[a-z*][a-z0-9_\-.*]*+"
_TOKEN = r"[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*+"  # §3.3.4
_UTF8 = (  # of a display string, §3.3.8: plain letters, and what is no letter of ASCII in hex
    r"[\x20\x21\x23\x24\x26-\x7e]|%[0-7][0-9a-f]|%(?:c[2-9a-f]|d[0-9a-f])%[89ab][0-9a-f]"
    r"|%(?:e0%[ab][0-9a-f]|e[1-9a-cef]%[89ab][0-9a-f]|ed%[89][0-9a-f])%[89ab][0-9a-f]"
    r"|%(?:f0%[9ab][0-9a-f]|f[1-3]%[89ab][0-9a-f]|f4%8[0-9a-f])(?:%[89ab][0-9a-f]){2}"
)
_BARE = "|".join(
    (
        _TOKEN,
        r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*+"',
        r"-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}",
        r":(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2,3}={0,2})?:",
        r"\?[01]",
        r"@-?[0-9]{1,15}",
        f'%"(?:{_UTF8})*+"',
    )
)
_PARAMETERS = rf"(?:; *+{_KEY}(?:=(?:{_BARE}))?)*+"
_ITEM = rf"(?:{_BARE}){_PARAMETERS}"
_INNER_LIST = rf"\( *+(?:{_ITEM}(?: ++{_ITEM})*+)? *+\){_PARAMETERS}"
_MEMBER = re.compile(rf"({_KEY})(?:=(?:({_TOKEN}){_PARAMETERS}|{_ITEM}|{_INNER_LIST})|{_PARAMETERS})")
_COMMA = re.compile(r"[ \t]*+,[ \t]*+")


def preferences(text: str) -> dict[str, str | None]:
    """Key → token of a Dictionary, None where the value is no token; of a repeated key the last. '' has none.

    Raises ValueError for what is no Dictionary.
    """
    text, found = text.lstrip(" ").rstrip(" \t"), dict[str, str | None]()
    position = 0
    while position < len(text):
        member = _MEMBER.match(text, position)
        if member is None:
            raise ValueError(f"no Dictionary of RFC 9651: {text[:80]!r} at {position}")
        found[member[1]] = member[2]
        comma = _COMMA.match(text, member.end())
        if comma is None and member.end() < len(text):
            raise ValueError(f"no Dictionary of RFC 9651: {text[:80]!r} at {member.end()}")
        position = len(text) if comma is None else comma.end()
        if comma is not None and position == len(text):
            raise ValueError(f"no Dictionary of RFC 9651: {text[:80]!r} ends with a comma")
    return found


def forbids_training(text: str) -> bool:
    """Whether a Content-Usage says that its owner wants no training; text that is no Dictionary says nothing."""
    try:
        return preferences(text).get(TRAINING) == "n"
    except ValueError:
        return False


def signals_no_training(text: str) -> bool:
    """Whether a Content-Signal has `ai-train=no`; of several any."""
    members = (part.partition("=") for part in text.lower().split(","))
    return any(name.strip() == "ai-train" and value.strip() == "no" for name, _, value in members)
