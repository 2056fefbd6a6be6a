"""Kind `any_of`: a sample is good where any of several signals is, each by a threshold of its own."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, checked, setting
from curation_assets.numeric.selection import share_count
from curation_assets.selection.kinds import Kind, floats, missing_reason, scored


@checked("any_of")
class KIND(Kind):
    """quality is how many signals pass: a policy with threshold 1 keeps what any passes, 2 what two do.

    Raters of different faults seldom agree, so a union loses less than a mean does (SkillRater, 2026, *unverified*).
    Raises ValueError unless two or more signals are given, with shares in (0, 1].
    """

    shares: Mapping[str, Number] = setting(description="stage.table → share of its valued samples that pass, the best.")

    def __post_init__(self) -> None:
        if len(self.shares) < 2 or not all(0 < share <= 1 for share in self.shares.values()):
            raise ValueError(f"any_of needs two or more signals with shares in (0, 1], got {dict(self.shares)}")

    @property
    def signals(self) -> tuple[str, ...]:
        """Any of which may pass."""
        return tuple(self.shares)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per signal: threshold (equal values pass), standard deviation, valued samples."""
        rows = pl.concat([part.select("sample_id", *self.signals) for part in shards]).unique("sample_id", keep="first")
        frozen = []
        for signal, share in self.shares.items():
            values = np.sort(floats(rows, signal))
            values = values[np.isfinite(values)]
            if not len(values):
                raise ValueError(f"no sample has a value of {signal}, so there is no best share of it")
            threshold = values[len(values) - max(1, share_count(len(values), float(share)))]
            frozen.append((signal, float(threshold), float(values.std()) or 1.0, len(values)))
        return pl.DataFrame(frozen, schema=["signal", "threshold", "sd", "valued"], orient="row")

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """How many signals pass; `best_missed`, the one that is nearest to passing, in standard deviations."""
        names = [signal.partition(".")[2] for signal in self.signals]
        values = np.stack([floats(rows, signal) for signal in self.signals], axis=1)  # (N, S)
        gap = (fit["threshold"].to_numpy() - values) / fit["sd"].to_numpy()
        passed = gap <= 0
        gap = np.where(np.isnan(gap) | passed, np.inf, gap)
        nearest = gap.argmin(axis=1)
        reason = missing_reason(rows, self.signals)
        no_value = pl.Series("none", np.isnan(values).all(axis=1))
        return scored(
            passed.sum(axis=1),
            pl.DataFrame([reason, no_value]).select(pl.when("none").then("reason").alias("reason"))["reason"],
            [f"best missed: {names[number]}" for number in nearest],
            best_missed=[None if np.isinf(gap[row, at]) else names[at] for row, at in enumerate(nearest)],
        )
