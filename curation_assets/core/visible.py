"""Texts that came with data, as a terminal may be given them: nothing in them moves its cursor or forges a line."""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

#: Control characters (ESC, line breaks, C1), line and paragraph separators, what changes the direction of text, lone
#: surrogates (which have no bytes).
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, keep: str = "") -> str:
    """The text with control characters as JSON writes them, but those of `keep`: ESC is \\u001b, a line feed \\n.

    The text of a JSON document stays one of the same content.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def visible_texts(content: Any) -> Any:
    """A value, or plain values of JSON, with `visible` texts, keys too; line breaks stay, and so does ready HTML."""
    if type(content) is str:
        return visible(content, "\n\t")
    if isinstance(content, dict):
        return {visible_texts(key): visible_texts(value) for key, value in content.items()}
    return [visible_texts(value) for value in content] if isinstance(content, list) else content


class Terminal(Console):
    """A console that prints no control character but its own, whatever it is given."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As Rich's, made visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, "\n"))
