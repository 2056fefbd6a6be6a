"""What an owner declares about the use of an image for training: one signal, and a cell of a list of them."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

LETTERS = 200  # of a value or a place that is kept
MAX_SIGNALS = 10  # of one kind, of one image


class Signal(NamedTuple):
    """One declaration. `kind`: content-usage, content-signal, rsl, tdmrep, image, x-robots-tag or robots;
    `value`: as its owner wrote it; `where`: header, the URL of a file, or the part of the image; `is_no`: it forbids
    training.
    """

    kind: str
    value: str
    where: str
    is_no: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.value[:LETTERS]} ({self.where[:LETTERS]})"


def signal_rows(signals: Iterable[Signal], checked_at: datetime) -> list[dict[str, Any]]:
    """A cell of `rights_signals` (stores/provenance.py): each signal once, as found, MAX_SIGNALS of a kind at most."""
    found = dict.fromkeys((one.kind, one.value[:LETTERS], one.where[:LETTERS]) for one in signals)
    count = Counter[str]()
    rows = []
    for kind, value, where in found:
        count[kind] += 1
        if count[kind] <= MAX_SIGNALS:
            rows.append({"kind": kind, "value": value, "where": where, "checked_at": checked_at})
    return rows
