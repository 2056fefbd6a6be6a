"""What owners declare about training in headers, and what a download does about a declaration of each kind."""

import re
from collections.abc import Collection, Iterable, Mapping
from email.message import Message
from types import MappingProxyType
from typing import Literal

from curation_assets.sources.download.content_usage import forbids_training, signals_no_training
from curation_assets.sources.download.tdmrep import KIND as TDMREP
from curation_assets.sources.download.tdmrep import is_reserved, reserved, states_reservation
from curation_assets.stores.rights_signals import Signal

HEADER = "header"
Treatment = Literal["ignore", "record", "refuse"]
OptOutName = Literal["robots", "x-robots-tag", "train-ai", "content-signal", "tdmrep", "rsl", "image"]
#: What is done unless `opt_outs` says otherwise: what forbids training is refused; terms of RSL are for people to read.
DEFAULTS: Mapping[OptOutName, Treatment] = MappingProxyType(
    {
        "robots": "refuse",
        "x-robots-tag": "refuse",
        "train-ai": "refuse",
        "content-signal": "refuse",
        "tdmrep": "refuse",
        "rsl": "record",
        "image": "refuse",
    }
)
IN_ROBOTS_TXT: tuple[OptOutName, ...] = ("robots", "train-ai", "content-signal", "rsl")
#: Directives of X-Robots-Tag that have a value after the colon, where others have an agent before it.
_VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_LINK = re.compile(r"<([^<>]*+)>((?:[^,\"<]|\"[^\"]*+\")*+)")
_REL = re.compile(r";\s*+rel\s*+=\s*+(?:\"([^\"]*+)\"|([^\s;,\"]++))", re.IGNORECASE)
_RSL_TYPE = re.compile(r";\s*+type\s*+=\s*+\"?application/rsl\+xml\"?\s*+(?:;|$)", re.IGNORECASE)


def treatment_of(signal: Signal, treatments: Mapping[OptOutName, Treatment]) -> Treatment:
    """What is done about a signal of this kind."""
    name: OptOutName = "train-ai" if signal.kind == "content-usage" else signal.kind  # type: ignore[assignment]
    return treatments[name]


def standing(signals: Iterable[Signal]) -> list[Signal]:
    """The signals that count: TDMRep's header supersedes its file (§ Processing priority)."""
    signals = list(signals)
    has_header = any(one.kind == TDMREP and one.where == HEADER for one in signals)
    return [one for one in signals if one.kind != TDMREP or one.where == HEADER or not has_header]


def header_signals(headers: Message, *, words: Collection[str], agents: Collection[str]) -> list[Signal]:
    """What the headers of an answer declare.

    `words`: directives of X-Robots-Tag that count as a no. They may be addressed to all or to one of `agents`
    ("img2dataset: noai"); what is addressed to other agents does not concern us.
    """
    signals = _x_robots_tags(headers, {word.strip().lower() for word in words}, {agent.lower() for agent in agents})
    policy = next(iter(_all(headers, "TDM-Policy")), None)
    for value in _all(headers, "TDM-Reservation"):
        if states_reservation(value):
            signals.append(Signal(TDMREP, reserved(value, policy), HEADER, is_reserved(value)))
    usage = ", ".join(_all(headers, "Content-Usage"))  # RFC 9651 §4.2: several lines are one Dictionary
    if usage:
        signals.append(Signal("content-usage", usage, HEADER, forbids_training(usage)))
    for value in _all(headers, "Content-Signal"):
        signals.append(Signal("content-signal", value, HEADER, signals_no_training(value)))
    for value in _all(headers, "Link"):
        signals += [Signal("rsl", url, HEADER, is_no=True) for url in _rsl_links(value)]
    return signals


def _all(headers: Message, name: str) -> list[str]:
    return [text for value in headers.get_all(name, []) if (text := str(value).strip())]


def _x_robots_tags(headers: Message, words: Collection[str], agents: Collection[str]) -> list[Signal]:
    signals = []
    for value in _all(headers, "X-Robots-Tag"):
        addressee = None
        for part in value.split(","):
            name, colon, rest = part.partition(":")
            if colon and name.strip().lower() in _VALUED:
                continue
            if colon:
                addressee = name.strip().lower()
            word = (rest if colon else part).strip().lower()
            if word in words and (addressee is None or addressee in agents):
                signals.append(Signal("x-robots-tag", value, HEADER, is_no=True))
                break
    return signals


def _rsl_links(value: str) -> list[str]:
    """Targets of a Link header (RFC 8288) that are licences of RSL 1.0."""
    found = []
    for target, parameters in _LINK.findall(value):
        rel = _REL.search(parameters)
        if rel and "license" in (rel[1] or rel[2]).lower().split() and _RSL_TYPE.search(parameters):
            found.append(target.strip())
    return found
