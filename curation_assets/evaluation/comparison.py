"""Training sets side by side: means, intervals, differences from random, ranks and scores of `downstream/<trainer>`.

The statistics are docs/user/evaluation.md, "Comparing training sets".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
REFERENCE = "what the others are compared with"  # its reading
EQUAL_COUNT = 0.01  # subsets of their own size are compared where their counts differ by at most this share
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


@dataclass
class _TrainingSet:
    """All runs of one training set under one metric, and what is known of them."""

    policy: str
    kind: str
    runs: dict[str, dict[int, float]] = field(default_factory=dict)  # pool → seed → value
    counts: dict[str, list[int]] = field(default_factory=dict)  # pool → samples trained on, one per run
    reasons: list[str] = field(default_factory=list)  # of runs without a value

    def add(self, pool: str, seed: int, n: int, value: float | None, reason: str | None) -> None:
        self.counts.setdefault(pool, []).append(n)
        if value is None or not np.isfinite(value):
            self.reasons.append(reason or "no reason given")
            return
        seeds = self.runs.setdefault(pool, {})
        if seed in seeds:
            raise ValueError(f"{self.policy}: two values of one metric for pool {pool!r} and seed {seed}")
        seeds[seed] = float(value)

    def count_in(self, pools: Iterable[str]) -> float:
        """Mean number of samples in these pools."""
        return float(np.mean([n for pool in pools for n in self.counts[pool]]))


@dataclass(eq=False)
class _Row:
    """A row of the comparison before ranks and the test of all together."""

    of: _TrainingSet
    difference: Estimate | None
    notes: list[str]  # what the reader of the figures must know
    values: dict[str, object]


def compare_training_sets(metrics: pl.DataFrame, *, holm_adjusted: bool = False) -> pl.DataFrame:
    """One row per trainer, training set, size and metric, as `downstream/comparison` holds them.

    `metrics`: rows of the tables `downstream/<trainer>` of one or more pools (METRIC_SCHEMA); all metrics: higher is
    better. With several pools a pool is the unit, and the interval holds the variance of pool, draw and seed; with one
    pool a seed is, and the reading states it. `difference`: from random of the same size, by pool and seed.
    `is_clear`: the interval of the difference excludes 0; with `holm_adjusted` only where it still does after Holm's
    correction for all comparisons of the table. Equal means share the better rank; who lacks pools that others have is
    not ranked. Raises ValueError for missing columns, and for a run with two values of one metric.
    """
    metrics = checked_metrics(metrics)
    groups: dict[tuple[str, float | None, str], dict[tuple[str, str], _TrainingSet]] = {}
    for row in metrics.iter_rows(named=True):
        sets = groups.setdefault((row["trainer"], row["size"], row["metric"]), {})
        training_set = sets.setdefault((row["policy"], row["kind"]), _TrainingSet(row["policy"], row["kind"]))
        training_set.add(row["pool"], row["seed"], row["n"], row["value"], row["reason"])
    rows: list[_Row] = []
    for (trainer, size, metric), sets in groups.items():
        compared = [_row(each, _random_of(sets.values()), size) for each in sets.values()]
        _rank(compared)
        for each in compared:
            each.values |= {"trainer": trainer, "size": size, "metric": metric}
        rows += compared
    _decide(rows, holm_adjusted)
    table = pl.DataFrame([row.values for row in rows], schema=dict(COMPARISON_SCHEMA), orient="row")
    return table.sort("trainer", "size", "metric", "rank", "policy", "kind", nulls_last=True)


def checked_metrics(metrics: pl.DataFrame) -> pl.DataFrame:
    """The columns of METRIC_SCHEMA in their types. Raises ValueError for those that are missing or of another type."""
    missing = [name for name in METRIC_SCHEMA if name not in metrics.columns]
    if missing:
        raise ValueError(f"a table of metrics needs the columns {', '.join(METRIC_SCHEMA)}; {', '.join(missing)} lack")
    try:
        return metrics.select(pl.col(name).cast(dtype) for name, dtype in METRIC_SCHEMA.items())
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"a table of metrics has a column of another type: {str(error).splitlines()[0]}") from error


def _random_of(sets: Iterable[_TrainingSet]) -> _TrainingSet | None:
    """The control before a policy of the same name."""
    named = sorted((each for each in sets if each.policy == RANDOM), key=lambda each: each.kind)
    return named[0] if named else None


def _row(training_set: _TrainingSet, random: _TrainingSet | None, size: float | None) -> _Row:
    runs, notes = training_set.runs, []
    values: dict[str, object] = {
        "policy": training_set.policy,
        "kind": training_set.kind,
        "n": round(training_set.count_in(training_set.counts)),
        "pools": len(runs),
        "seeds": len({seed for seeds in runs.values() for seed in seeds}),
    }
    if not runs:
        return _Row(training_set, None, [f"no value: {_listed(training_set.reasons)}"], values)
    level = estimate(independent_units(runs))
    values |= {"mean": level.mean, "sd": level.sd, "low": level.low, "high": level.high}
    difference = None
    if training_set is random:
        notes.append(REFERENCE)
    elif random is None or not random.runs:
        notes.append("not compared: no random training set of this size")
    else:
        difference, why = _difference(training_set, random, size)
        notes += why
    if difference is not None:
        values |= {
            "difference": difference.mean,
            "difference_low": difference.low,
            "difference_high": difference.high,
        }
    if level.units == 1:
        notes.append("one run shows no spread")
    elif len(runs) == 1:
        notes.append("one pool: how pools vary is not in the interval")
    if training_set.reasons:
        runs_in_all = sum(map(len, runs.values())) + len(training_set.reasons)
        notes.append(
            f"{len(training_set.reasons)} of {runs_in_all} runs without a value: {_listed(training_set.reasons)}"
        )
    return _Row(training_set, difference, notes, values)


def _difference(
    training_set: _TrainingSet, random: _TrainingSet, size: float | None
) -> tuple[Estimate | None, list[str]]:
    """The paired difference from random, and what limits it in words; None where the two are not comparable."""
    differences = paired_differences(training_set.runs, random.runs)
    if not differences:
        return None, ["not compared: no run with the pool and seed of a random one"]
    counts = {pool: (training_set.count_in([pool]), random.count_in([pool])) for pool in differences}
    unequal = [pair for pair in counts.values() if abs(pair[0] - pair[1]) > EQUAL_COUNT * pair[1]]
    notes = []
    if unequal:
        own, others = unequal[0]
        sizes = f"{own:,.0f} samples against random's {others:,.0f}"
        if size is None:
            return None, [f"not compared: {sizes}"]
        notes.append(sizes)
    if len(differences) < len(training_set.runs):
        notes.append(f"compared in {len(differences)} of {len(training_set.runs)} pools")
    return estimate(independent_units(differences)), notes


def _rank(rows: list[_Row]) -> None:
    """Ranks by mean, 1 best, of those that have every pool which one of them has."""
    pools = {pool for row in rows for pool in row.of.runs}
    complete = [row for row in rows if row.of.runs.keys() == pools and pools]
    for row in rows:
        if row.of.runs and row not in complete:
            row.notes.append(f"{len(row.of.runs)} of {len(pools)} pools, so without a rank")
    means = [round(float(str(row.values["mean"])), 12) for row in complete]  # the order of summing ranks nothing
    for row, mean in zip(complete, means, strict=True):
        row.values["rank"] = 1 + sum(other > mean for other in means)


def _decide(rows: list[_Row], holm_adjusted: bool) -> None:
    """Whether each difference is clear, and its sentence."""
    tested = [row for row in rows if row.difference is not None and row.difference.p is not None]
    adjusted = holm(np.array([row.difference.p for row in tested if row.difference is not None]))
    after_holm = {id(row): p for row, p in zip(tested, adjusted, strict=True)}
    for row in rows:
        is_clear = None if row.difference is None else row.difference.excludes_zero
        lost = False
        if holm_adjusted and is_clear:
            is_clear = bool(after_holm[id(row)] <= 1 - CONFIDENCE)
            lost = not is_clear
        row.values["is_clear"] = is_clear
        sentences = [] if row.difference is None else [_sentence(row.difference, bool(is_clear))]
        if lost:
            sentences.append(f"one of {len(tested)} comparisons, after Holm's correction not clear")
        row.values["reading"] = "; ".join([*sentences, *row.notes])


def _sentence(difference: Estimate, is_clear: bool) -> str:
    mean = difference.mean
    if difference.low is None or difference.high is None:
        if difference.units > 1 and not mean:
            return f"the same as random in all {difference.units} pairs"
        side = "above" if mean > 0 else "below"
        where = "one pair" if difference.units == 1 else f"all {difference.units} pairs alike"
        amount = f"{written(abs(mean))} {side} random" if mean else "the same as random"
        return f"{amount} in {where}, so without an interval"
    numbers = (abs(mean), difference.low, difference.high)
    if is_clear:
        side = "above" if mean > 0 else "below"
        # below random by .04 (.01 to .07): the interval of what is stated
        low, high = (difference.low, difference.high) if mean > 0 else (-difference.high, -difference.low)
        amount, low_text, high_text = written(abs(mean), low, high).split()
        return f"{side} random by {amount} ({low_text} to {high_text})"
    amount, low_text, high_text = written(mean, *numbers[1:]).split()
    return f"no difference from random shown: {amount} ({low_text} to {high_text})"


def written(*numbers: float) -> str:
    """Numbers with one blank between them, all with as many decimals as none but 0 needs to differ from 0: 3 to 6.

    Without the 0 before the point: .041 −.002 1.250.
    """
    digits = next((d for d in range(3, 6) if all(not n or round(n, d) for n in numbers)), 6)
    texts = (f"{abs(n):.{digits}f}".removeprefix("0") for n in numbers)
    return " ".join(f"−{text}" if n < 0 else text for n, text in zip(numbers, texts, strict=True))


def written_share(size: float) -> str:
    """A share without the 0 before the point: .25, .125, 1."""
    return f"{size:g}".removeprefix("0")


def _listed(reasons: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


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

    Of the means of `compare_training_sets`: per metric min–max over the training sets of one size, then the mean over
    metrics (formulas.md §8.4), in [0, 1]. A metric that no training set has is left out; a training set that lacks
    another, or pools that others have, has no score, and the reading names what it lacks.
    """
    rows = []
    trainers = comparison["trainer"].unique(maintain_order=True).to_list()
    parts = [(trainer, comparison.filter(pl.col("trainer") == trainer)) for trainer in trainers]
    if len(trainers) > 1:
        parts.append((ALL_TRAINERS, comparison))
    for trainer, part in parts:
        for (size,), of_size in part.group_by("size", maintain_order=True):
            for row in _scores(of_size):
                rows.append({"trainer": trainer, "size": size, **row})
    return pl.DataFrame(rows, schema=dict(SCORE_SCHEMA), orient="row")


def _scores(of_size: pl.DataFrame) -> list[dict[str, object]]:
    """policy, kind, metrics, score, reading of the training sets of one size; best first, without a score last."""
    ranked = of_size.filter(pl.col("rank").is_not_null())
    columns = sorted(set(ranked.select("trainer", "metric").iter_rows()))
    means = {(r["policy"], r["kind"], r["trainer"], r["metric"]): r["mean"] for r in ranked.iter_rows(named=True)}
    sets = list(dict.fromkeys(of_size.select("policy", "kind").iter_rows()))
    lacks = {each: [metric for trainer, metric in columns if (*each, trainer, metric) not in means] for each in sets}
    complete = [each for each in sets if not lacks[each] and columns]
    scored: dict[tuple[str, str], float] = {}
    if len(complete) > 1:
        table = np.array([[means[(*each, *column)] for column in columns] for each in complete])  # (S, M)
        scored = dict(zip(complete, map(float, data_set_scores(table)), strict=True))
    rows: list[dict[str, object]] = []
    for policy, kind in sorted(sets, key=lambda each: (-scored.get(each, -1.0), each)):
        reading = None
        if (policy, kind) not in scored:
            missing = lacks[policy, kind]
            reading = f"no score: without {', '.join(missing)}" if missing else "no score: no other training set"
        rows.append({"policy": policy, "kind": kind, "metrics": len(columns), "score": scored.get((policy, kind)),
                     "reading": reading})  # fmt: skip
    return rows
