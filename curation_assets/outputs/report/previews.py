"""A table at a glance, as Markdown for asset metadata: its first rows, and the plot worth looking at."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from curation_assets.flow.conservation import Rows, rows_by_state
from curation_assets.methods import teachers

INLINE_CHARACTERS = 1000  # Dagster shows shorter Markdown in its place, longer behind a button
BINS, BARS = 40, " ▁▂▃▄▅▆▇█"  # of a histogram


def plot_of(table: str, rows: Rows) -> tuple[str, str] | None:
    """What it shows, and the plot worth looking at for a table as Markdown; None where there is none.

    Rows by state and reason, agreement with ratings, the plane of rated captions, or the distribution of its value.
    Those of shards are shorter than INLINE_CHARACTERS.
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
    if {"scorer", "spearman", "spearman_low"} <= columns.keys():
        from curation_assets.outputs.report.pictures import agreement_figure, data_uri  # matplotlib, half a second

        return "agreement with ratings", f"![Spearman correlations]({data_uri(agreement_figure(read(*columns)))})"
    names = [method.name for method in teachers() if method.name in columns]
    if len(names) == 2 and "rating" in columns:
        from curation_assets.outputs.report.pictures import data_uri, plane_figure

        rated = read(*names, "rating").cast(pl.Float64).drop_nulls()
        figure = plane_figure(rated.select(names), rated["rating"].to_numpy(), None)
        return "rated captions by both teachers' scores", f"![rated captions]({data_uri(figure)})"
    column = next((one for one in ("value", "quality", *names) if one in columns), None)
    if column is None or not columns[column].is_numeric():
        return None
    return f"values of {name}", _histogram(read(column).to_series(), {})


def _histogram(column: pl.Series, states: Mapping[str, np.ndarray]) -> str:
    """Histogram of values as Markdown: a line of bars, for each state where there are some, and the figures below.

    `states`: name → (N,) which rows are in it.
    """
    values = column.cast(pl.Float64).to_numpy()  # nan where there is none
    shown = {name: values[rows & np.isfinite(values)] for name, rows in states.items()}
    shown = shown or {"values": values[np.isfinite(values)]}
    every = np.concatenate(list(shown.values()))
    if not len(every):
        return "no values"
    smallest, largest = float(every.min()), float(every.max())
    counts = {name: np.bincount(_bins_of(of, smallest, largest), minlength=BINS) for name, of in shown.items()}
    highest = max(int(of.max()) for of in counts.values())
    lines = [
        f"`{''.join(BARS[-(-int(count) * (len(BARS) - 1) // highest)] for count in counts[name])}` {len(of):,} {name}"
        for name, of in shown.items()
    ]
    figures = f"smallest {smallest:.4g}, median {float(np.median(every)):.4g}, largest {largest:.4g}"
    return "\n\n".join([*lines, figures])


def _bins_of(values: np.ndarray, smallest: float, largest: float) -> np.ndarray:
    """(N,) values in [smallest, largest] → (N,) the bin of each, below BINS; equal values are in the middle.

    np.histogram raises where the range is too wide for a float, or too narrow for so many edges.
    """
    width = largest / 2 - smallest / 2
    shares = (values / 2 - smallest / 2) / width if width > 0 else np.full(len(values), 0.5)
    return np.minimum((shares * BINS).astype(int), BINS - 1)


def _states_table(frame: Rows, rows: int = 8) -> str:
    """Rows by state and reason, most frequent first, as a Markdown table with bars."""
    counted = rows_by_state(frame)
    total = counted["len"].sum()
    lines = ["| state | reason | rows | |", "|---|---|---|---|"]
    for status, reason, count in counted.head(rows).iter_rows():
        lines.append(f"| {status} | {reason} | {count:,} | {'█' * round(20 * count / total)} |")
    if counted.height > rows:
        lines.append(f"| others | | {counted['len'][rows:].sum():,} | |")
    return "\n".join(lines)


#: Columns of text that do not describe what a sample holds.
SHOWN_TEXTS = frozenset(
    ("sample_id", "shard", "status", "reason", "verdict", "decided_by", "policy", "policy_version", "other", "metric",
     "method", "teacher", "kind", "target", "rank_by", "language", "member", "step", "grouping",
     "signal", "standardisation", "scorer", "similarity", "standardised", "when", "length_unit")
)  # fmt: skip


def preview_of(frame: Rows, rows: int = 5, width: int = 60) -> str:
    """First rows as a Markdown table, long cells cut.

    Without free text (captions, URLs): what is shown stays in Dagster's event log, where no takedown reaches.
    """
    shown = [
        name
        for name, dtype in frame.collect_schema().items()
        if not (isinstance(dtype, pl.List | pl.Struct | pl.Binary) or (dtype == pl.String and name not in SHOWN_TEXTS))
    ]
    first = frame.lazy().head(rows).collect()
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    for row in zip(*(first.get_column(name).to_list() for name in shown), strict=True):
        cells = (str(cell).replace("|", "¦").replace("\n", " ") for cell in row)
        lines.append(
            "| " + " | ".join(cell if len(cell) <= width else cell[: width - 1] + "…" for cell in cells) + " |"
        )
    return "\n".join(lines)
