"""Kind `vas_d`: images that align with the set that is left of the pool, shrunk in equal steps (VAS-D, NormSim₂-D)."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Whole, checked, setting
from curation_assets.methods import lower_is_better, oriented
from curation_assets.numeric.contrast import variance_alignment
from curation_assets.numeric.selection import best, share_count
from curation_assets.numeric.variance_shrinking import shrink_by_variance
from curation_assets.selection.kinds import Kind, embeddings_of, floats, missing_reason, scored

OUTSIDE = 2.0  # taken off the quality of what was not to start with: more than any two values of VAS differ
SAME = 1e-12  # values of VAS, at most 1, that differ by less are equal: of copies either all are inside or none


@checked("vas_d")
class KIND(Kind):
    """quality is VAS with the set before its last cut, less the value at that cut: 0 and more stay (formulas §15.3)."""

    start_by: str = setting(default="signals.clip_score", description="stage.table whose best samples are the start.")
    start_fraction: Number = setting(default=0.3, gt=0, le=1, description="Share of the pool to start with.")
    fraction: Number = setting(default=0.2, gt=0, le=1, description="Share of the pool that is left.")
    steps: Whole = setting(default=500, ge=1, description="Equal steps from the one share to the other.")

    def __post_init__(self) -> None:
        if self.fraction > self.start_fraction:
            raise ValueError(f"fraction must be at most start_fraction {self.start_fraction}, got {self.fraction}")

    @property
    def signals(self) -> tuple[str, ...]:
        """What the start is chosen by."""
        return (self.start_by,)

    @property
    def columns(self) -> tuple[str, ...]:
        """Image embeddings."""
        return ("image_embedding",)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per dimension: its row of the second moment, and in each the cuts: `start_from` (value of start_by),
        `boundary` (VAS), and how many started, are left, and were dropped before the last step and return (`returned`).

        Holds the embeddings of all samples with a value: 4 D bytes each, as much again of those that start.
        """
        valued = [_valued(rows, self.start_by) for rows in shards]
        rows = pl.concat(valued).unique("sample_id", keep="first").sort("sample_id")
        if rows.is_empty():
            raise ValueError(f"no sample has an image embedding and a value of {self.start_by}, so there is no set")
        values = floats(rows, self.start_by)
        starts = best(values, max(1, share_count(rows.height, self.start_fraction)))
        vectors = embeddings_of(rows.filter(pl.Series(starts)))
        count = min(len(vectors), max(1, share_count(rows.height, self.fraction)))
        is_left, moment = shrink_by_variance(vectors, count, self.steps)
        aligned = variance_alignment(vectors, moment)
        boundary = _boundary(aligned, is_left)
        dimensions = len(moment)
        return pl.DataFrame(
            {
                "dimension": np.arange(dimensions),
                "second_moment": pl.Series(moment.tolist(), dtype=pl.List(pl.Float64)),
                "start_from": [float(values[starts].min())] * dimensions,
                "boundary": [boundary] * dimensions,
                "started": [len(vectors)] * dimensions,
                "left": [count] * dimensions,
                "returned": [int(((aligned >= boundary) & ~is_left).sum())] * dimensions,
            }
        )

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """VAS less the boundary, less 2 where the sample is below the start; `vas` itself."""
        reason = missing_reason(rows, ["image_embedding", self.start_by])
        there = np.flatnonzero(reason.is_null().to_numpy())
        aligned = np.full(rows.height, np.nan)
        if len(there):
            moment = np.array(fit["second_moment"].to_list())  # (D, D)
            aligned[there] = variance_alignment(embeddings_of(rows[there]), moment)
        start_from, boundary = fit["start_from"][0], fit["boundary"][0]
        is_outside = floats(rows, self.start_by) < start_from
        name = self.start_by.partition(".")[2]
        side = "above" if lower_is_better(self.start_by) else "below"
        start = f"{name} {side} the start {oriented(self.start_by, start_from):.4g}"
        words = (start, f"variance alignment below {boundary:.4g}")
        return scored(
            aligned - boundary - np.where(is_outside, OUTSIDE, 0.0),
            reason,
            [words[0] if outside else words[1] for outside in is_outside.tolist()],
            vas=pl.Series(aligned).fill_nan(None),
        )


def _valued(rows: pl.DataFrame, signal: str) -> pl.DataFrame:
    """The rows that have an embedding and a finite value, with the columns that the fit reads."""
    found = rows.filter(pl.col("image_embedding").is_not_null() & pl.Series(np.isfinite(floats(rows, signal))))
    return found.select("sample_id", signal, pl.col("image_embedding").cast(pl.List(pl.Float32)))


def _boundary(aligned: np.ndarray, is_left: np.ndarray) -> float:
    """Half-way between the lowest value that is left and the next below it: no rounding moves one over it.

    0, which every value reaches, where none is below.
    """
    lowest = float(aligned[is_left].min())
    below = aligned[aligned < lowest - SAME]
    return (lowest + float(below.max())) / 2 if len(below) else 0.0
