"""A table at a glance, as Markdown for asset metadata: its first rows, and the plot worth looking at."""

import base64
import io
from collections.abc import Mapping

import numpy as np
import polars as pl
from PIL import Image, ImageColor

from curation_assets.flow.conservation import Rows, rows_by_state
from curation_assets.methods import teachers
from curation_assets.outputs.report.colours import BLUE, MUTED, STATE_COLOURS

INLINE_CHARACTERS = 1000  # Dagster shows shorter Markdown in its place, longer behind a button
SMALL_BINS, SMALL_BIN_PX, SMALL_HEIGHT_PX = 40, 6, 64


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
        return f"values by verdict of {name}", _small_histogram(frame["value"], verdicts)
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
    return f"values of {name}", _small_histogram(read(column).to_series(), {})


def _small_histogram(column: pl.Series, states: Mapping[str, np.ndarray]) -> str:
    """Histogram of values as Markdown: an image without text, the figures below it.

    `states`: name → (N,) which rows are in it; their bars stand on each other. None: all rows are alike.
    Drawn by Pillow: matplotlib takes thirty times as long and ten times as many bytes, for every shard of every table.
    """
    values = column.cast(pl.Float64).to_numpy()  # nan where there is none
    is_shown = np.isfinite(values)
    if states:
        is_shown &= np.logical_or.reduce(list(states.values()))
    every = values[is_shown]
    if not len(every):
        return "no values"
    smallest, largest = float(every.min()), float(every.max())
    bins = _bins_of(every, smallest, largest)
    of_states = [bins[rows[is_shown]] for rows in states.values()] or [bins]
    counts = [np.bincount(of_state, minlength=SMALL_BINS) for of_state in of_states]
    tops = np.cumsum(counts, axis=0)  # of each state's part of a bar, in rows
    levels = np.ceil(tops * ((SMALL_HEIGHT_PX - 2) / max(1, tops[-1].max())))
    above = np.arange(SMALL_HEIGHT_PX - 1, -1, -1)[:, None, None]  # px above the axis, of each line of the image
    below = (above > levels.T[None]).sum(axis=2)  # states whose part of a bar ends below a line
    colour = np.where(above[..., 0] == 0, 1, np.where(below < len(counts), below + 2, 0))
    bars = np.repeat(colour.astype(np.uint8), SMALL_BIN_PX, axis=1)
    bars[:-1, SMALL_BIN_PX - 1 :: SMALL_BIN_PX] = 0  # a gap after each
    image = Image.frombytes("P", bars.shape[::-1], bars.tobytes())
    colours = ["#ffffff", MUTED, *([STATE_COLOURS[state] for state in states] or [BLUE])]
    image.putpalette([part for name in colours for part in ImageColor.getrgb(name)])
    buffer = io.BytesIO()
    image.save(buffer, format="png")
    by_state = [f"{len(part):,} {state}" for state, part in zip(states, of_states, strict=False)]
    counted = ", ".join(by_state) or f"{len(every):,} values"
    shown = f"{counted}; smallest {smallest:.4g}, median {float(np.median(every)):.4g}, largest {largest:.4g}"
    return f"![histogram](data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()})\n\n{shown}"


def _bins_of(values: np.ndarray, smallest: float, largest: float) -> np.ndarray:
    """(N,) values in [smallest, largest] → (N,) the bin of each, below SMALL_BINS; equal values are in the middle.

    np.histogram raises where the range is too wide for a float, or too narrow for so many edges.
    """
    width = largest / 2 - smallest / 2
    shares = (values / 2 - smallest / 2) / width if width > 0 else np.full(len(values), 0.5)
    return np.minimum((shares * SMALL_BINS).astype(int), SMALL_BINS - 1)


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
