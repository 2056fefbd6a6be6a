"""Markdown for an asset's metadata: the first rows of its table, and the most telling plot."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from curation_assets.flow.conservation import Rows, rows_by_state
from curation_assets.methods import teachers

INLINE_CHARACTERS = 1000  # Dagster shows shorter Markdown in its place, longer behind a button
BINS, BARS = 40, " ▁▂▃▄▅▆▇█"  # of a histogram
CELL_CHARACTERS = 60  # of a cell of a preview; a longer one is cut
REASONS = 8  # that have a line of their own, the most frequent ones


def plot_of(table: str, rows: Rows) -> tuple[str, str] | None:
    """The most telling plot of a table: its title, and the plot as Markdown; None where none fits.

    It shows rows by state and reason, or the distribution of the table's value, and is shorter than INLINE_CHARACTERS.
    """
    name, columns = table.split("/")[-1], rows.collect_schema()

    def read(*names: str) -> pl.DataFrame:
        return rows.lazy().select(*names).collect()

    if rows.lazy().head(1).collect().is_empty():
        return None
    if {"verdict", "value"} <= columns.keys():
        frame = read("verdict", "value")
        verdicts = {state: (frame["verdict"] == state).to_numpy() for state in ("kept", "dropped")}
        return f"values by verdict of {name}", _histogram(frame["value"], verdicts)
    if {"status", "reason"} <= columns.keys():
        return "rows by state and reason", _states_table(rows)
    names = (method.name for method in teachers())
    column = next((one for one in ("value", "quality", *names) if one in columns), None)
    if column is None or not columns[column].is_numeric():
        return None
    return f"values of {name}", _histogram(read(column).to_series(), {})


def _histogram(column: pl.Series, states: Mapping[str, np.ndarray]) -> str:
    """A histogram as Markdown: a line of bars per state (without states for all), then the figures.

    `states`: name → (N,) which rows are in it.
    """
    values = column.cast(pl.Float64).to_numpy()  # nan where there is none
    finite = np.isfinite(values)
    shown = {name: values[rows & finite] for name, rows in (states or {"values": finite}).items()}
    every = np.concatenate(list(shown.values()))
    if not len(every):
        return "no values"
    smallest, largest = float(every.min()), float(every.max())
    counts = {name: np.bincount(_bins_of(part, smallest, largest), minlength=BINS) for name, part in shown.items()}
    highest = max(part.max() for part in counts.values())
    lines = []
    for name, part in counts.items():
        heights = -(-part * (len(BARS) - 1) // highest)  # rounded up: a single value has a bar
        bars = "".join(BARS[height] for height in heights)
        lines.append(f"`{bars}` {part.sum():,} {name}")
    lines.append(f"smallest {smallest:.4g}, median {np.median(every):.4g}, largest {largest:.4g}")
    return "\n\n".join(lines)


def _bins_of(values: np.ndarray, smallest: float, largest: float) -> np.ndarray:
    """(N,) values in [smallest, largest] → (N,) bins, below BINS; the middle one for equal values.

    np.histogram raises where the range is too wide for a float, or too narrow for so many edges.
    """
    width = largest / 2 - smallest / 2
    shares = (values / 2 - smallest / 2) / width if width > 0 else np.full(len(values), 0.5)
    return np.minimum((shares * BINS).astype(int), BINS - 1)


def _states_table(rows: Rows) -> str:
    """Rows by state and reason, most frequent first, as a Markdown table with bars."""
    counted = rows_by_state(rows)
    total = counted["len"].sum()
    lines = ["| state | reason | rows | |", "|---|---|---|---|"]
    for status, reason, count in counted.head(REASONS).iter_rows():
        lines.append(f"| {status} | {reason} | {count:,} | {'█' * round(20 * count / total)} |")
    if counted.height > REASONS:
        lines.append(f"| others | | {counted['len'][REASONS:].sum():,} | |")
    return "\n".join(lines)


#: Columns of text that do not describe what a sample holds.
SHOWN_TEXTS = frozenset(
    ("sample_id", "shard", "status", "reason", "verdict", "decided_by", "policy", "policy_version", "other", "metric",
     "method", "teacher", "kind", "target", "rank_by", "language", "member", "step", "grouping",
     "signal", "standardisation", "scorer", "similarity", "standardised", "when", "length_unit")
)  # fmt: skip


def preview_of(frame: Rows, rows: int = 5) -> str:
    """The first rows as a Markdown table, long cells cut.

    Free text (captions, URLs) is left out: a preview stays in Dagster's event log, where no
    takedown reaches it.
    """
    shown = [name for name, dtype in frame.collect_schema().items() if _is_shown(name, dtype)]
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    for row in frame.lazy().select(shown).head(rows).collect().iter_rows():
        lines.append("| " + " | ".join(map(_cell, row)) + " |")
    return "\n".join(lines)


def _is_shown(name: str, dtype: pl.DataType) -> bool:
    if dtype == pl.String:
        return name in SHOWN_TEXTS
    return not isinstance(dtype, pl.List | pl.Struct | pl.Binary)


def _cell(value: object) -> str:
    text = str(value).replace("|", "¦").replace("\n", " ")
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"
