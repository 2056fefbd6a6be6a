"""`/.well-known/tdmrep.json` (TDMRep, W3C Community Group report of 10 May 2024): reservations by location."""

import json

from curation_assets.sources.download.path_patterns import PathPattern, path_of
from curation_assets.stores.rights_signals import Signal

PATH = "/.well-known/tdmrep.json"
MAX_BYTES = 1024 * 1024  # more is not read
KIND = "tdmrep"


class TdmRules:
    """The rules of one server. A file that cannot be read reserves nothing; `signals` state why."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[PathPattern, str]] = []
        self._problem: str | None = None
        text = text.strip("\ufeff \t\r\n")
        if not text.startswith(("[", "{")):
            return  # no such file: many servers answer any path with a page
        try:
            self._rules = _rules(text)
        except (ValueError, RecursionError) as error:
            self._problem = str(error)

    def signals(self, url: str, where: str) -> list[Signal]:
        """The first rule whose location matches (the report's "most specific match is the first in sequence")."""
        if self._problem is not None:
            return [Signal(KIND, f"unreadable: {self._problem}", where, is_no=False)]
        path = path_of(url) if self._rules else ""
        value = next((value for pattern, value in self._rules if pattern.matches(path)), None)
        return [] if value is None else [Signal(KIND, value, where, is_reserved(value.partition(" ")[0]))]


def _rules(text: str) -> list[tuple[PathPattern, str]]:
    if len(text) >= MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    rules = json.loads(text)
    if not isinstance(rules, list):
        raise ValueError("a JSON array of rules is expected")
    found = []
    for rule in rules:
        if not isinstance(rule, dict):
            continue
        location, reservation, policy = (rule.get(name) for name in ("location", "tdm-reservation", "tdm-policy"))
        if isinstance(location, str) and location and states_reservation(reservation):
            value = reserved(str(reservation).lower(), policy if isinstance(policy, str) else None)
            found.append((PathPattern(location), value))
    return found


def states_reservation(given: object) -> bool:
    """Whether a tdm-reservation says something: 0 or 1, as a number or a text, and true or false, which many write."""
    return str(given).strip().lower() in ("0", "1", "false", "true")


def is_reserved(reservation: str) -> bool:
    """Whether rights are reserved."""
    return reservation.strip().lower() in ("1", "true")


def reserved(reservation: str, policy: str | None) -> str:
    """'1', or '1 https://example.org/policy' with the address of a policy; a reservation as it was written."""
    return f"{reservation.strip()} {policy or ''}".strip()
