"""What an owner declares about the use of an image for training: one signal, and how tables hold a list of them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import polars as pl

LETTERS = 200  # of a value or a place that is kept
MAX_SIGNALS = 50  # of one image

#: Column `rights_signals`: null where nobody looked, empty where there was none.
RIGHTS_SIGNALS = pl.List(
    pl.Struct(
        {
            "kind": pl.String,  # content-usage, content-signal, rsl, tdmrep, image, x-robots-tag or robots
            "value": pl.String,  # as the owner wrote it
            "where": pl.String,  # header, the URL of a file, or the part of the image
            "checked_at": pl.Datetime("us", "UTC"),
        }
    )
)


class Signal(NamedTuple):
    """One declaration. `is_no`: it forbids training."""

    kind: str
    value: str
    where: str
    is_no: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.value[:LETTERS]} ({self.where[:LETTERS]})"


def signal_rows(signals: Iterable[Signal], checked_at: datetime) -> list[dict[str, Any]]:
    """A cell of `rights_signals`: each signal once, as found, the first MAX_SIGNALS."""
    found = dict.fromkeys((one.kind, one.value[:LETTERS], one.where[:LETTERS]) for one in signals)
    return [
        {"kind": kind, "value": value, "where": where, "checked_at": checked_at}
        for kind, value, where in list(found)[:MAX_SIGNALS]
    ]
