"""Patterns of paths in robots.txt (RFC 9309 §2.2.2, §2.2.3) and tdmrep.json: prefixes with `*`, and `$` for the end."""

import urllib.parse

from curation_assets.stores.web_addresses import one_escaping

_KEPT = frozenset(b"/?")  # written plainly they part a path; as %2F and %3F they are letters of it


def path_of(url: str) -> str:
    """Path and query of a URL as patterns are compared with them: of several spellings of one octet, one."""
    parts = urllib.parse.urlsplit(url)
    return one_escaping((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), _KEPT)


class PathPattern:
    """A pattern; `octets`: its length when encoded, by which the most specific of several is found."""

    def __init__(self, text: str) -> None:
        is_anchored = text.endswith("$")
        canonical = one_escaping(text.removesuffix("$"), _KEPT | {ord("*")})
        self._parts = canonical.split("*")
        self._is_anchored = is_anchored
        self.octets = len(canonical) + is_anchored

    def matches(self, path: str) -> bool:
        """Whether it matches a path of `path_of`; each piece is looked for where the one before it ended."""
        first, *rest = self._parts
        if not rest:
            return path == first if self._is_anchored else path.startswith(first)
        if not path.startswith(first):
            return False
        position = len(first)
        for part in rest[:-1]:
            position = path.find(part, position) + len(part)
            if position < len(part):
                return False
        if self._is_anchored:
            return path.endswith(rest[-1]) and len(path) - len(rest[-1]) >= position
        return path.find(rest[-1], position) >= 0
