"""Kind `soft_cap`: how often each sample is drawn, where every draw makes its next one less likely (FLYT)."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Whole, checked, setting
from curation_assets.numeric.identity import draw_keys
from curation_assets.numeric.selection import share_count
from curation_assets.numeric.soft_cap import fit_soft_cap, multiplicities
from curation_assets.selection.kinds import Kind, floats, missing_reason, scored


@checked("soft_cap")
class KIND(Kind):
    """quality is a multiplicity: 0, 1, 2, … A policy over it says `repeats: true` (formulas.md §15.8)."""

    score_by: str = setting(description="stage.table whose value is standardised and drawn by.")
    budget: Number = setting(gt=0, description="Entries in all, repeats included, as a share of the valued samples.")
    draws: Whole = setting(default=100, ge=1, description="Draws, each without replacement.")
    penalty: Number = setting(default=0.15, ge=0, unit="logits", description="What a draw costs a sample.")
    scale: Number = setting(default=1.0, gt=0, unit="logits", description="Logits per standard deviation of the value.")
    seed: Whole = setting(default=0, ge=0, description="Of the noise, which is hashed from it and the sample_id.")

    def __post_init__(self) -> None:
        if self.budget > self.draws:
            raise ValueError(
                f"{self.draws} draws give each sample at most as many entries; budget {self.budget} is more"
            )

    @property
    def signals(self) -> tuple[str, ...]:
        """What is drawn by."""
        return (self.score_by,)

    def _keys(self, ids: pl.Series) -> np.ndarray:
        return draw_keys(ids.to_list(), f"soft_cap:{self.seed}")

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per draw: the smallest logit with noise that it takes; mean and sd that made values logits."""
        rows = pl.concat([part.select("sample_id", self.score_by) for part in shards]).unique("sample_id")
        rows = rows.filter(pl.Series(np.isfinite(floats(rows, self.score_by))))
        if rows.is_empty():
            raise ValueError(f"no sample has a finite value of {self.score_by}, so there is nothing to draw")
        values = floats(rows, self.score_by)
        mean, sd = float(values.mean()), float(values.std()) or 1.0
        budget = max(1, share_count(rows.height, self.budget) if self.budget <= 1 else round(rows.height * self.budget))
        logits = (values - mean) / sd * self.scale
        thresholds = fit_soft_cap(logits, self._keys(rows["sample_id"]), budget, min(self.draws, budget), self.penalty)
        return pl.DataFrame({"draw": np.arange(len(thresholds)), "threshold": thresholds}).with_columns(
            mean=pl.lit(mean), sd=pl.lit(sd), budget=pl.lit(budget)
        )

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """How often each row is drawn."""
        values = floats(rows, self.score_by)
        logits = (values - fit["mean"][0]) / fit["sd"][0] * self.scale
        drawn = multiplicities(logits, self._keys(rows["sample_id"]), fit["threshold"].to_numpy(), self.penalty)
        reason = missing_reason(rows, self.signals)
        return scored(drawn.astype(np.float64), reason, [f"in none of {fit.height} draws"] * rows.height)
