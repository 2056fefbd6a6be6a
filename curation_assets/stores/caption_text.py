"""A caption's text, the same from every container: how long it may be, what is cut off its ends, when it is blank."""

import re

import polars as pl

MAX_TEXT_BYTES = 1 << 20  # of a caption, a URL or an id, in UTF-8: DataComp has captions of a million characters
#: Anything but blanks, control characters and characters of no width or ink (joiners, direction marks, fillers).
VISIBLE = (
    "[^\\s\\x00-\\x1f\\x7f-\\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_VISIBLE = re.compile(VISIBLE)
_LINE_ENDS = "\r\n"


def caption_text(text: str) -> str:
    """The caption as every container gives it: without line ends after it. U+FEFF inside a value belongs to it."""
    return text.rstrip(_LINE_ENDS)


def caption_of_file(data: bytes) -> str:
    """The caption of a text file, which may begin with a byte order mark. Raises UnicodeDecodeError."""
    return caption_text(data.decode("utf-8-sig"))


def caption_texts(texts: pl.Expr) -> pl.Expr:
    """`caption_text` of a column."""
    return texts.str.strip_chars_end(_LINE_ENDS)


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen."""
    return _VISIBLE.search(text) is None


def are_blank(texts: pl.Expr) -> pl.Expr:
    """`is_blank` of a column; null counts as blank."""
    return ~texts.fill_null("").str.contains(VISIBLE)


def is_encodable(text: str) -> bool:
    """Whether a text has no lone surrogate: those have no bytes, and no table can hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
