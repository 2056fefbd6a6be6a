"""Kind `linear_mix`: a weighted sum of standardised signals; weights are given, or learned from ratings of samples."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, checked, setting
from curation_assets.numeric.linear_mix import LinearMix, fit_linear_mix, linear_mix, means_and_sds
from curation_assets.selection.kinds import Kind, floats, missing_reason, scored
from curation_assets.stores.text_tables import read_table


@checked("linear_mix")
class KIND(Kind):
    """One linear layer over standardised signals (M-FLYT; formulas.md §15.7).

    Raises ValueError unless either the file `ratings` or a weight of every signal is given, and for an at_most of a
    signal that is not mixed.
    """

    later: ClassVar[tuple[str, ...]] = ("weights", "at_most")

    mix: tuple[str, ...] = setting(description="stage.table of the signals that are mixed.")
    ratings: str | None = setting(
        default=None, description="File with columns sample_id and rating, higher is better; null: weights are given."
    )
    weights: Mapping[str, Number] = setting(
        default_factory=dict, description="In place of ratings: signal → weight of its standardised values."
    )
    at_most: Mapping[str, Number] = setting(
        default_factory=dict, description="Signal → value above which more counts no further."
    )
    model: Literal["logistic", "ridge"] = setting(
        default="logistic", description="P(rated above the median), or the rating itself."
    )
    l2: Number = setting(default=1.0, ge=0, description="Penalty on the weights of standardised signals.")

    def __post_init__(self) -> None:
        if (self.ratings is None) == (not self.weights) or (self.weights and set(self.weights) != set(self.mix)):
            raise ValueError(
                f"linear_mix needs the file ratings, or weights of exactly {list(self.mix)}; "
                f"got ratings {self.ratings} and weights of {list(self.weights) or 'none'}"
            )
        if unmixed := set(self.at_most) - set(self.mix):
            raise ValueError(f"at_most must name signals of mix {list(self.mix)}, got {sorted(unmixed)}")

    @property
    def signals(self) -> tuple[str, ...]:
        """What is mixed."""
        return self.mix

    @property
    def files(self) -> tuple[Path, ...]:
        """The ratings, if weights are learned."""
        return () if self.ratings is None else (Path(self.ratings).expanduser(),)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per signal: mean and sd over the pool, its weight; intercept and number of ratings."""
        rows = pl.concat([part.select("sample_id", *self.mix) for part in shards])
        values = self._values(rows)
        if self.ratings is None:
            means, sds = means_and_sds(values)
            weights = np.array([float(self.weights[name]) for name in self.mix])
            mix = LinearMix(means, sds, weights, intercept=0.0, rating_count=0)
        else:
            rated = self._ratings(self.files[0], rows["sample_id"])
            mix = fit_linear_mix(values, rated, self.model, float(self.l2), self.mix)
        return pl.DataFrame(
            {
                "signal": self.mix,
                "mean": mix.means,
                "sd": mix.sds,
                "weight": mix.weights,
                "intercept": [mix.intercept] * len(self.mix),
                "rating_count": [mix.rating_count] * len(self.mix),
            }
        )

    def _values(self, rows: pl.DataFrame) -> np.ndarray:
        """(N, K), cut at `at_most`; NaN where there is no value."""
        columns = [np.minimum(floats(rows, name), float(self.at_most.get(name, np.inf))) for name in self.mix]
        return np.stack(columns, axis=1)

    def _ratings(self, path: Path, ids: pl.Series) -> np.ndarray:
        """(N,) mean rating of each sample, NaN without one. Raises ValueError for a file without both columns."""
        table = read_table(path)
        if not {"sample_id", "rating"} <= set(table.columns):
            raise ValueError(f"{path}: expected columns sample_id and rating, got {table.columns}")
        numbers = table.select("sample_id", pl.col("rating").cast(pl.Float64)).drop_nulls()
        means = numbers.group_by("sample_id").agg(pl.col("rating").mean())
        joined = ids.to_frame("sample_id").join(means, on="sample_id", how="left", maintain_order="left")
        return floats(joined, "rating")

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """The mix; and which signal speaks most against the row."""
        values = self._values(rows)
        mix = LinearMix(
            fit["mean"].to_numpy(), fit["sd"].to_numpy(), fit["weight"].to_numpy(),
            fit["intercept"][0], fit["rating_count"][0],
        )  # fmt: skip
        quality, parts = linear_mix(values, mix, self.model)
        reason = missing_reason(rows, self.mix)
        lowest = np.nan_to_num(parts, nan=np.inf).argmin(axis=1) if len(parts) else []
        return scored(quality, reason, [f"most against: {self.mix[number].partition('.')[2]}" for number in lowest])
