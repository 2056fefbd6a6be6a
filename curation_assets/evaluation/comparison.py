"""Training sets side by side: means, intervals, differences from random, ranks and scores of `downstream/<trainer>`.

The statistics are docs/user/evaluation.md, "Comparing training sets".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.numeric.metrics.comparison import (
    CONFIDENCE,
    Estimate,
    data_set_scores,
    estimate,
    holm,
    independent_units,
    paired_differences,
)

RANDOM = "random"  # the training set that all others are compared with
REFERENCE = "what the others are compared with"  # in the reading of RANDOM
EQUAL_COUNT = 0.01  # subsets without a stated size are compared where their counts differ by at most this share
ALL_TRAINERS = "all"

#: A table `downstream/<trainer>` with the columns `pool` and `trainer`.
METRIC_SCHEMA: Mapping[str, pl.DataType] = {
    "pool": pl.String(), "trainer": pl.String(), "policy": pl.String(), "kind": pl.String(), "size": pl.Float64(),
    "n": pl.Int64(), "seed": pl.Int64(), "metric": pl.String(), "value": pl.Float64(), "reason": pl.String(),
}  # fmt: skip
COMPARISON_SCHEMA: Mapping[str, pl.DataType] = {
    "trainer": pl.String(), "policy": pl.String(), "kind": pl.String(), "size": pl.Float64(), "metric": pl.String(),
    "n": pl.Int64(), "pools": pl.Int64(), "seeds": pl.Int64(), "mean": pl.Float64(), "sd": pl.Float64(),
    "low": pl.Float64(), "high": pl.Float64(), "difference": pl.Float64(), "difference_low": pl.Float64(),
    "difference_high": pl.Float64(), "is_clear": pl.Boolean(), "rank": pl.Int64(), "reading": pl.String(),
}  # fmt: skip
SCORE_SCHEMA: Mapping[str, pl.DataType] = {
    "trainer": pl.String(), "size": pl.Float64(), "policy": pl.String(), "kind": pl.String(), "metrics": pl.Int64(),
    "score": pl.Float64(), "reading": pl.String(),
}  # fmt: skip


@dataclass(eq=False)
class _TrainingSet:
    """All runs of one training set under one metric, and its row of the comparison."""

    values: dict[str, Any]  # column of the comparison → value, as far as it is known
    runs: dict[str, dict[int, float]]  # pool → seed → value
    counts: dict[str, float]  # pool → samples trained on, the mean of its runs
    notes: list[str]  # remarks for the reader of the figures; joined they are the column `reading`
    difference: Estimate | None = None  # from random; None where the two are not compared

    @classmethod
    def of(cls, rows: pl.DataFrame) -> "_TrainingSet":
        """The training set of rows of METRIC_SCHEMA. Raises ValueError for a run with two values."""
        valued = rows.filter(pl.col("value").is_finite())  # neither nan nor null
        runs: dict[str, dict[int, float]] = {}
        for policy, pool, seed, value in valued.select("policy", "pool", "seed", "value").iter_rows():
            if seed in runs.setdefault(pool, {}):
                raise ValueError(f"{policy}: two values of one metric for pool {pool!r} and seed {seed}")
            runs[pool][seed] = value
        counts = dict(rows.group_by("pool").agg(pl.col("n").mean()).iter_rows())
        values = {name: rows[name][0] for name in ("trainer", "policy", "kind", "size", "metric")}
        values |= {
            "n": round(rows.select(pl.col("n").mean()).item()),
            "pools": len(runs),
            "seeds": valued["seed"].n_unique(),
        }
        lacking = rows.filter(~pl.col("value").is_finite().fill_null(False))["reason"].fill_null("no reason given")
        reasons = ", ".join(lacking.unique(maintain_order=True))
        if not runs:
            return cls(values, runs, counts, [f"no value: {reasons}"])
        level, notes = estimate(independent_units(runs)), []
        if level.units == 1:
            notes.append("one run shows no spread")
        elif len(runs) == 1:
            notes.append("one pool: how pools vary is not in the interval")
        if reasons:
            notes.append(f"{len(lacking)} of {rows.height} runs without a value: {reasons}")
        values |= {"mean": level.mean, "sd": level.sd, "low": level.low, "high": level.high}
        return cls(values, runs, counts, notes)

    def compare(self, random: "_TrainingSet | None") -> None:
        """Set the paired difference from random; note its limits, or why there is no comparison."""
        if not self.runs:
            return
        if random is self:
            self.notes.insert(0, REFERENCE)
            return
        if random is None or not random.runs:
            self.notes.insert(0, "not compared: no random training set of this size")
            return
        differences = paired_differences(self.runs, random.runs)
        if not differences:
            self.notes.insert(0, "not compared: no run with the pool and seed of a random one")
            return
        limits = []
        for pool in differences:
            own, others = self.counts[pool], random.counts[pool]
            if abs(own - others) > EQUAL_COUNT * others:
                limits.append(f"{own:,.0f} samples against random's {others:,.0f}")
                break
        if limits and self.values["size"] is None:
            self.notes.insert(0, f"not compared: {limits[0]}")
            return
        if len(differences) < len(self.runs):
            limits.append(f"compared in {len(differences)} of {len(self.runs)} pools")
        self.notes[:0] = limits
        self.difference = one = estimate(independent_units(differences))
        self.values |= {"difference": one.mean, "difference_low": one.low, "difference_high": one.high}


def compare_training_sets(metrics: pl.DataFrame, *, holm_adjusted: bool = False) -> pl.DataFrame:
    """One row per trainer, training set, size and metric, as `downstream/comparison` holds them.

    `metrics`: rows of the tables `downstream/<trainer>` of one or more pools (METRIC_SCHEMA).
    Higher is better in all metrics. With several pools the pool is the unit, and the interval holds
    the variance of pool, draw and seed; with one pool the seed is the unit, which the reading
    states. `difference`: from random of the same size, by pool and seed. `is_clear`: the interval
    of the difference excludes 0; with `holm_adjusted` only where the difference stays clear after
    Holm's correction for all comparisons of the table. Equal means share the better rank; a
    training set that lacks a pool which another one has is not ranked. Raises ValueError for
    missing columns, and for a run with two values of one metric.
    """
    rows: list[_TrainingSet] = []
    for part in checked_metrics(metrics).partition_by("trainer", "size", "metric", maintain_order=True):
        sets = [_TrainingSet.of(one) for one in part.partition_by("policy", "kind", maintain_order=True)]
        # by kind: the control comes before a policy of the same name
        named_random = [one for one in sets if one.values["policy"] == RANDOM]
        random = min(named_random, key=lambda one: one.values["kind"], default=None)
        for one in sets:
            one.compare(random)
        _rank(sets)
        rows += sets
    _decide(rows, holm_adjusted)
    table = pl.DataFrame([row.values for row in rows], schema=dict(COMPARISON_SCHEMA), orient="row")
    return table.sort("trainer", "size", "metric", "rank", "policy", "kind", nulls_last=True)


def checked_metrics(metrics: pl.DataFrame) -> pl.DataFrame:
    """The columns of METRIC_SCHEMA in their types. Raises ValueError for a missing or wrong one."""
    missing = [name for name in METRIC_SCHEMA if name not in metrics.columns]
    if missing:
        raise ValueError(f"a table of metrics needs the columns {', '.join(METRIC_SCHEMA)}; {', '.join(missing)} lack")
    try:
        return metrics.select(pl.col(name).cast(dtype) for name, dtype in METRIC_SCHEMA.items())
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"a table of metrics has a column of another type: {str(error).splitlines()[0]}") from error


def _rank(sets: list[_TrainingSet]) -> None:
    """Set the ranks by mean, 1 is best. A training set that lacks another one's pool gets none."""
    pools = {pool for one in sets for pool in one.runs}
    complete = [one for one in sets if pools and one.runs.keys() == pools]
    for one in sets:
        if one.runs and one not in complete:
            one.notes.append(f"{len(one.runs)} of {len(pools)} pools, so without a rank")
    means = [round(one.values["mean"], 12) for one in complete]  # equal up to the order of summing
    for one, mean in zip(complete, means, strict=True):
        one.values["rank"] = 1 + sum(other > mean for other in means)


def _decide(sets: list[_TrainingSet], holm_adjusted: bool) -> None:
    """Set whether each difference is clear, and the reading of each row."""
    tested = {one: one.difference.p for one in sets if one.difference is not None and one.difference.p is not None}
    after_holm = dict(zip(tested, holm(np.array(list(tested.values()))), strict=True))
    for one in sets:
        if one.difference is not None:
            is_clear = one.difference.excludes_zero
            if holm_adjusted and is_clear and after_holm[one] > 1 - CONFIDENCE:
                is_clear = False
                one.notes.insert(0, f"one of {len(tested)} comparisons, after Holm's correction not clear")
            one.values["is_clear"] = is_clear
            one.notes.insert(0, _sentence(one.difference, bool(is_clear)))
        one.values["reading"] = "; ".join(one.notes)


def _sentence(difference: Estimate, is_clear: bool) -> str:
    mean, low, high = difference.mean, difference.low, difference.high
    side = "above" if mean > 0 else "below"
    if low is None or high is None:
        if difference.units > 1 and not mean:
            return f"the same as random in all {difference.units} pairs"
        where = "one pair" if difference.units == 1 else f"all {difference.units} pairs alike"
        amount = f"{written(abs(mean))[0]} {side} random" if mean else "the same as random"
        return f"{amount} in {where}, so without an interval"
    if is_clear and mean < 0:  # "below random by .04 (.01 to .07)": without the sign, as `below` states it
        mean, low, high = -mean, -high, -low
    amount, low_text, high_text = written(mean, low, high)
    start = f"{side} random by" if is_clear else "no difference from random shown:"
    return f"{start} {amount} ({low_text} to {high_text})"


def written(*numbers: float) -> list[str]:
    """Numbers as texts with equally many decimals, 3 to 6: so many that only 0 is written as 0.

    Without the 0 before the point: .041, −.002, 1.250.
    """
    smallest = min((abs(number) for number in numbers if number), default=1)
    digits = next((digits for digits in range(3, 6) if round(smallest, digits)), 6)
    texts = []
    for number in numbers:
        text = f"{abs(number):.{digits}f}".removeprefix("0")
        texts.append(f"−{text}" if number < 0 else text)
    return texts


def written_share(size: float) -> str:
    """A share without the 0 before the point: .25, .125, 1."""
    return f"{size:g}".removeprefix("0")


def comparisons_in_words(comparison: pl.DataFrame) -> str:
    """How many comparisons a table makes, how many are clear, and how many would be by chance alone."""
    tested = comparison.filter(pl.col("difference_low").is_not_null()).height
    if not tested:
        return "no comparison with random has an interval; it takes two pools, or two seeds of one"
    clear = int(comparison["is_clear"].sum() or 0)
    return (
        f"{clear} of {tested} comparisons with random are clear; if no training set differed from random, about "
        f"{tested * (1 - CONFIDENCE):.1f} would be by chance"
    )


def score_training_sets(comparison: pl.DataFrame) -> pl.DataFrame:
    """Rao et al.'s Score of every training set, per trainer and over all trainers, at each size.

    It is computed from the means of `compare_training_sets`: per metric min–max over the training
    sets of one size, then the mean over metrics (formulas.md §8.4), in [0, 1]. A metric that no
    training set has is left out. A training set that lacks another metric, or a pool that others
    have, has no score, and the reading names what it lacks.
    """
    rows = []
    trainers = comparison["trainer"].unique(maintain_order=True).to_list()
    parts = [(trainer, comparison.filter(pl.col("trainer") == trainer)) for trainer in trainers]
    if len(trainers) > 1:
        parts.append((ALL_TRAINERS, comparison))
    for trainer, part in parts:
        for (size,), of_size in part.group_by("size", maintain_order=True):
            rows += [{"trainer": trainer, "size": size, **row} for row in _scores(of_size)]
    return pl.DataFrame(rows, schema=dict(SCORE_SCHEMA), orient="row")


def _scores(of_size: pl.DataFrame) -> list[dict[str, object]]:
    """policy, kind, metrics, score, reading of the training sets of one size; best first, without a score last."""
    ranked = of_size.filter(pl.col("rank").is_not_null())
    columns = sorted(set(ranked.select("trainer", "metric").iter_rows()))
    means: dict[tuple[str, str], dict[tuple[str, str], float]] = {}  # training set → column → mean
    for policy, kind in of_size.select("policy", "kind").iter_rows():
        means[policy, kind] = {}
    for policy, kind, trainer, metric, mean in ranked.select("policy", "kind", "trainer", "metric", "mean").iter_rows():
        means[policy, kind][trainer, metric] = mean
    complete = [one for one, of_set in means.items() if columns and len(of_set) == len(columns)]
    scored: dict[tuple[str, str], float] = {}
    if len(complete) > 1:
        table = np.array([[means[one][column] for column in columns] for one in complete])  # (S, M)
        scored = dict(zip(complete, data_set_scores(table).tolist(), strict=True))
    rows: list[dict[str, object]] = []
    for one in sorted(means, key=lambda one: (-scored.get(one, -1.0), one)):
        missing = [metric for trainer, metric in columns if (trainer, metric) not in means[one]]
        if one in scored:
            reading = None
        elif missing:
            reading = f"no score: without {', '.join(missing)}"
        else:
            reading = "no score: no other training set"
        policy, kind = one
        row = {"policy": policy, "kind": kind, "metrics": len(columns), "score": scored.get(one), "reading": reading}
        rows.append(row)
    return rows
