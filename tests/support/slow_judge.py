"""A policy's verdicts row by row, in plain Python: the slow twin that the judge on arrays is held against.

It shares nothing with selection/judging.py and numeric/selection.py but the policy's steps and the record of a cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import polars as pl

from curation_assets.numeric.identity import unit_interval_of
from curation_assets.selection.cut import Cut
from curation_assets.selection.policy import RANDOM, Policy, Step

Row = dict[str, Any]
Key = tuple[str, int]  # shard and source row


class NothingToCutError(Exception):
    """DataComp's rule needs a value at least."""


@dataclass(frozen=True)
class SlowlyJudged:
    """Verdicts in the order of the samples, and the cuts behind them."""

    verdicts: list[Row]  # the columns of VERDICT_SCHEMA, and rank
    cuts: tuple[Cut, ...]

    @property
    def kept(self) -> list[str]:
        """sample_ids of the subset, sorted."""
        return sorted(row["sample_id"] for row in self.verdicts if row["verdict"] == "kept")


def slow_judge(
    policy: Policy, samples: pl.DataFrame, tables: dict[str, pl.DataFrame], cuts: Sequence[Cut] | None = None
) -> SlowlyJudged:
    """Judge rows of raw/samples by `cuts`, or by the cuts that these rows give. `tables`: reference → its table."""
    rows = mark_duplicates(samples).to_dicts()
    verdicts = {key_of(row): verdict_of_raw(row) for row in rows}
    pool = candidates = [row for row in rows if row["status"] == "kept" and why_left_out(policy, row) is None]
    for row in rows:
        if row["status"] == "kept" and (why := why_left_out(policy, row)) is not None:
            verdicts[key_of(row)] |= {"verdict": "dropped", "reason": why}
    made: list[Cut] = []
    for number, step in enumerate(policy.steps):
        values, reasons = values_of(step, policy.seed, candidates, tables)
        ranking = sorted(
            (row for row in candidates if key_of(row) in values),
            key=lambda row: (-values[key_of(row)], row["sample_id"]),
        )
        if cuts is None:
            of_pool, _ = values_of(step, policy.seed, pool, tables)
            cut = fit(
                policy,
                step,
                [of_pool[key_of(row)] for row in pool if key_of(row) in of_pool],
                len(pool),
                len(candidates),
                [(values[key_of(row)], row["sample_id"]) for row in ranking],
            )
        else:
            cut = cuts[number]
        made.append(cut)
        passing = []
        for row in candidates:
            key = key_of(row)
            verdict = verdicts[key]
            verdict["decided_by"] = step.rank_by
            verdict["threshold"] = cut.threshold
            verdict["value"], verdict["rank"], verdict["margin"] = None, None, None
            if key not in values:
                verdict["verdict"], verdict["reason"] = "failed", f"no_value:{reasons[key]}"
                continue
            verdict["value"], verdict["rank"] = values[key], ranking.index(row) + 1
            if cut.threshold is not None and math.isfinite(cut.threshold) and math.isfinite(values[key]):
                verdict["margin"] = values[key] - cut.threshold
            if passes(cut, values[key], row["sample_id"]):
                passing.append(row)
                verdict["verdict"], verdict["reason"] = "kept", None
            else:
                is_last = number == len(policy.steps) - 1
                verdict["verdict"] = "dropped"
                verdict["reason"] = f"{'below_cut' if is_last else 'prefilter'}:{step.rank_by}"
        candidates = passing
    return SlowlyJudged([verdicts[key_of(row)] for row in rows], tuple(made))


def key_of(row: Row) -> Key:
    """What identifies a row of raw/samples: a sample_id may be in several."""
    return row["shard"], row["source_row"]


def mark_duplicates(samples: pl.DataFrame) -> pl.DataFrame:
    """Of the rows that raw kept of one sample, only the first by shard and source row stays kept. Order as given."""
    seen: set[str] = set()
    duplicates: set[Key] = set()
    for row in sorted(samples.to_dicts(), key=key_of):
        if row["status"] == "kept" and row["sample_id"] in seen:
            duplicates.add(key_of(row))
        elif row["status"] == "kept":
            seen.add(row["sample_id"])
    marked = [
        row | {"status": "dropped", "reason": "duplicate_across_shards"} if key_of(row) in duplicates else row
        for row in samples.to_dicts()
    ]
    return pl.DataFrame(marked, schema=samples.schema)


def why_left_out(policy: Policy, row: Row) -> str | None:
    """Why a row is left out before the first cut."""
    if policy.decontaminate and row["drop_reason"] is not None:
        return str(row["drop_reason"])
    if policy.licences:
        text = row["licence"]
        licence = "unknown" if text is None else "other" if " " in text else text.lower()
        return None if licence in policy.licences else f"licence:{licence}"
    return None


def verdict_of_raw(row: Row) -> Row:
    """The verdict of a row that no policy looks at."""
    return {
        "sample_id": row["sample_id"],
        "shard": row["shard"],
        "source_row": row["source_row"],
        "decided_by": None,
        "value": None,
        "threshold": None,
        "margin": None,
        "verdict": row["status"],
        "reason": None if row["status"] == "kept" else row["reason"] or "no_reason",
        "rank": None,
    }


def values_of(
    step: Step, seed: int, candidates: list[Row], tables: dict[str, pl.DataFrame]
) -> tuple[dict[Key, float], dict[Key, str]]:
    """The values of the candidates that have one, and why the others have none."""
    values: dict[Key, float] = {}
    reasons: dict[Key, str] = {}
    if step.rank_by == RANDOM:
        return {key_of(row): unit_interval_of(row["sample_id"], f"random_ranking:{seed}") for row in candidates}, {}
    table = {key_of(row): row for row in tables[step.rank_by].to_dicts()}
    for row in candidates:
        signal = table.get(key_of(row))
        if signal is None:
            reasons[key_of(row)] = "no_row"
            continue
        value = signal["quality" if "quality" in signal else "value"]
        if value is None or math.isnan(value):
            reasons[key_of(row)] = signal["reason"] or "no_reason"
        else:
            values[key_of(row)] = value
    return values, reasons


def fit(
    policy: Policy,
    step: Step,
    pool_values: list[float],
    pool_size: int,
    candidates: int,
    ranking: list[tuple[float, str]],
) -> Cut:
    """The cut of one step. `ranking`: (value, sample_id) of its candidates, best first."""
    if step.threshold is not None:
        kept, threshold, boundary_id = sum(value >= step.threshold for value, _ in ranking), step.threshold, None
    elif policy.semantics == "compat":
        if not pool_values:
            raise NothingToCutError
        threshold = sorted(pool_values, reverse=True)[int(len(pool_values) * step.fraction)]
        kept, boundary_id = sum(value >= threshold for value, _ in ranking), None
    else:
        wanted = step.count if step.count is not None else math.floor(share(pool_size, step.fraction) + Fraction(1, 2))
        kept = min(wanted, len(ranking))
        threshold, boundary_id = ranking[kept - 1] if kept else (None, None)
    return Cut(step.rank_by, candidates, len(ranking), kept, threshold, boundary_id)


def share(pool_size: int, fraction: float | None) -> Fraction:
    """`fraction`, read as it is written, of a pool."""
    assert fraction is not None
    return pool_size * Fraction(str(fraction))


def passes(cut: Cut, value: float, sample_id: str) -> bool:
    """Above the threshold, or at it with a sample_id up to the boundary; nothing where there is no threshold."""
    if cut.threshold is None:
        return False
    if value == cut.threshold and cut.boundary_id is not None:
        return sample_id <= cut.boundary_id
    return value >= cut.threshold
