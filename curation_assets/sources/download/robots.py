"""robots.txt of a server (RFC 9309): what it allows, and what it declares about training, to the first of our names."""

import re
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from protego import Protego

from curation_assets.sources.download.content_usage import forbids_training, signals_no_training
from curation_assets.sources.download.path_patterns import PathPattern, path_of
from curation_assets.stores.rights_signals import Signal

PATH = "/robots.txt"
MAX_BYTES = 500 * 1024  # RFC 9309 §2.5: more is not read
MAX_LICENCES = 10  # of a file
OTHER_AGENT = "another-agent"
KIND: Final = "robots"
_AGENT_LINE = re.compile(r"\s*user[-\s]*agent\b[\s:]*([^#]*)", re.IGNORECASE)
_ANYWHERE = ("sitemap", "sitemaps", "site-map", "host")  # lines that part no groups
#: Rules with an optional path → whether their value forbids training.
_DECLARATIONS: dict[str, Callable[[str], bool]] = {
    "content-usage": forbids_training,
    "content-signal": signals_no_training,
}


class Rules:
    """What a robots.txt says to the first of `agents` that it has a group for, else to `*`."""

    def __init__(self, text: str, agents: Sequence[str]) -> None:
        names: set[str] = set()
        group: set[str] = set()  # names of the group that a line belongs to
        is_begun = False  # whether that group has rules already
        lines, licences = [], []
        declared: list[tuple[set[str], str, str]] = []  # (names, field, value)
        for line in text.removeprefix("\ufeff").splitlines():
            match = _AGENT_LINE.match(line)
            if match:
                name = match[1].strip().lower()
                # Groups of others become one: thousands of agents with thousands of rules each would fill the memory
                name = name if name == "*" or name in agents else OTHER_AGENT
                names.add(name)
                group, is_begun = (set() if is_begun else group) | {name}, False
                line = f"User-agent: {name}"
            elif content := line.partition("#")[0].strip():
                rule, _, value = (part.strip() for part in content.partition(":"))
                rule = rule.lower()
                is_begun |= rule not in _ANYWHERE
                if rule in _DECLARATIONS:
                    declared.append((group, rule, value))
                elif rule == "license" and value:  # RSL 1.0: of the whole server, whatever group it stands in
                    licences.append(value)
            lines.append(line)
        self.agent = next((agent for agent in agents if agent in names), "*")
        self._licences = list(dict.fromkeys(licences))[:MAX_LICENCES]
        self._rules = Protego.parse("\n".join(lines))
        self._declared = [(rule, *_path_and_value(value)) for group, rule, value in declared if self.agent in group]

    def allow(self, url: str) -> bool:
        """Whether the URL may be fetched: the longest matching rule decides."""
        return bool(self._rules.can_fetch(url, self.agent))

    def signals(self, url: str, where: str) -> list[Signal]:
        """What the file declares about the URL, a Disallow among it. `where`: the file's URL.

        Of Content-Usage and Content-Signal the rules with the longest matching path (attach-05 §3.1); those of equal
        length all count, so that any no decides (vocab-08 §5.1). They hold for paths that are disallowed, too: who does
        not obey a Disallow gets no more rights by it.
        """
        signals = []
        if not self.allow(url):
            shown = (urllib.parse.urlsplit(url).path or "/")[:100]
            signals.append(Signal(KIND, f"disallows {shown} for the agent {self.agent}", where, is_no=True))
        path = path_of(url) if self._declared else ""
        for rule, is_no in _DECLARATIONS.items():
            matching = [(one, value) for name, one, value in self._declared if name == rule and one.matches(path)]
            for value in _most_specific(matching):
                signals.append(Signal(rule, value, where, is_no(value)))
        return signals + [Signal("rsl", licence, where, is_no=True) for licence in self._licences]


def _path_and_value(text: str) -> tuple[PathPattern, str]:
    """A rule's path, / where there is none, and what it says of it."""
    if not text.startswith("/"):
        return PathPattern("/"), text
    path, *value = text.split(maxsplit=1)
    return PathPattern(path), value[0] if value else ""


def _most_specific(matching: Iterable[tuple[PathPattern, str]]) -> list[str]:
    matching = list(matching)
    longest = max((pattern.octets for pattern, _ in matching), default=0)
    return list(dict.fromkeys(value for pattern, value in matching if pattern.octets == longest))
