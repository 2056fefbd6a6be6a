"""The judge: a policy's cuts of a pool, and by them the terminal state of every row.

A cut needs the whole pool once (`fit_cut`); frozen, it judges the rows of any shard alone (`judge`). Verdict tables,
plans and differences of policies are all judged here; the rule of one cut is in `numeric.selection`.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from curation_assets.methods import lower_is_better, oriented
from curation_assets.numeric.identity import bits_of, row_hashes
from curation_assets.numeric.selection import compat_rank, id_of_rank, value_of_rank
from curation_assets.selection.cut import NO_ID, Cut, PolicyCut, check_cut, kept_count
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import Policy, Step
from curation_assets.selection.rows import (
    DROP_REASON,
    IDENTITY,
    NOTHING_MORE,
    Changed,
    Rows,
    Wanted,
    floats,
    values_of,
)
from curation_assets.stores.columns import words_of

#: Grain: one row per row of raw/samples, in its order. Recorded signals follow.
VERDICT_SCHEMA: dict[str, Any] = {
    "sample_id": pl.String,
    "shard": pl.String,
    "source_row": pl.Int64,
    "decided_by": pl.String,  # rank_by of the cut that decided; null for rows that no cut saw
    "value": pl.Float64,  # in the unit of decided_by
    "threshold": pl.Float64,  # of that cut; null where it keeps nothing
    "margin": pl.Float64,  # how far the value is better than the threshold
    "verdict": pl.String,  # kept, dropped, failed
    "reason": pl.String,  # null exactly when kept
}
HELD_VALUES = 16_000_000  # of the rows that reach a cut; of more, values are counted and not held
SAMPLED = 2_000_000  # values of which the quantiles of a cut are taken
QUANTILES = 1001


class NothingToCutError(ValueError):
    """No sample has a value of the signal that a policy with semantics 'compat' cuts by."""


def judge(policy: Policy, rows: pl.DataFrame, cut: PolicyCut) -> pl.DataFrame:
    """Verdicts of rows by a frozen cut (VERDICT_SCHEMA), in their order.

    `rows`: as `read_rows` gives what `Wanted.of(policy)` names, without those that the policy leaves out (`remaining`).
    A row that raw did not keep stays as it is, with raw's reason. Others are kept; dropped, `prefilter:<rank_by>` or
    `below_cut:<rank_by>` and, after a further colon, what the table says of the row; or failed, `no_value:<reason>`.
    Raises ValueError for a cut of another policy, or of another version of it.
    """
    check_cut(policy, cut)
    names = [one.rank_by for one in cut.cuts]
    step = np.full(rows.height, len(names), dtype=np.int64)  # which cut decided; the last: none
    value = np.full(rows.height, np.nan)
    states = rows["status"]
    candidates = (states == "kept").arg_true().to_numpy()
    others = (states != "kept").arg_true().to_numpy()
    verdicts: list[tuple[np.ndarray, pl.Series | str, pl.Series]] = [
        (others, states.gather(others), rows["raw_reason"].gather(others).fill_null("no_reason"))
    ]
    for number, one in enumerate(cut.cuts):
        values = values_of(rows, one.rank_by)[candidates]
        passes, is_missing = one.passes(values, rows["sample_id"].gather(candidates)), np.isnan(values)
        step[candidates], value[candidates] = number, oriented(one.rank_by, values)
        below, failed = candidates[~(passes | is_missing)], candidates[is_missing]
        kind = f"{'below_cut' if number == len(names) - 1 else 'prefilter'}:{one.rank_by}"
        detail, why = (rows[f"{one.rank_by}:{name}"] for name in (DROP_REASON, "reason"))
        verdicts.append((below, "dropped", kind + (":" + detail.gather(below)).fill_null("")))
        verdicts.append((failed, "failed", "no_value:" + why.gather(failed).fill_null("no_reason")))
        candidates = candidates[passes]
    verdicts.append((candidates, "kept", pl.Series([None] * len(candidates), dtype=pl.String)))
    threshold = np.array([*(one.threshold for one in cut.cuts), None], dtype=np.float64)[step]
    with np.errstate(invalid="ignore"):
        margin = value - threshold
    margin[np.array([*map(lower_is_better, names), False])[step]] *= -1
    order = np.argsort(np.concatenate([at for at, _, _ in verdicts]), kind="stable")
    states = pl.concat(
        state if isinstance(state, pl.Series) else pl.Series([state], dtype=pl.String).new_from_index(0, len(at))
        for at, state, _ in verdicts
    )
    reasons = pl.concat(reason.cast(pl.String) for *_, reason in verdicts)
    numbers = {"value": value, "threshold": threshold, "margin": np.where(np.isfinite(margin), margin, np.nan)}
    return rows.select(IDENTITY).with_columns(
        pl.Series("decided_by", [*names, None], dtype=pl.String).gather(step),
        *(pl.Series(name, column, nan_to_null=True) for name, column in numbers.items()),
        states.gather(order).alias("verdict"),
        reasons.gather(order).alias("reason"),
    )


def multiplicity(policy: Policy, verdicts: pl.DataFrame) -> np.ndarray:
    """(N,) int64: how often each row is in the subset: once where kept; of a policy that repeats so often as its value
    says, rounded down. `verdicts`: verdict, and value where it repeats."""
    is_kept = (verdicts["verdict"].cast(pl.String) == "kept").to_numpy()
    if not policy.repeats:
        return is_kept.astype(np.int64)
    return np.where(is_kept, np.maximum(np.floor(np.nan_to_num(floats(verdicts["value"]))), 1), 0).astype(np.int64)


def reason_kind(reason: pl.Expr) -> pl.Expr:
    """'below_cut:fused.x:concept full: logo' → 'below_cut:fused.x'; any other reason as it is."""
    kind = reason.cast(pl.String).str.extract(r"^((?:below_cut|prefilter):[^:]+)", 1)
    return pl.coalesce(kind, reason.cast(pl.String))


def was_dropped_by(rank_by: str) -> pl.Expr:
    """Whether a policy's last cut dropped a row: a prefilter's reasons are others."""
    kind, reason = f"below_cut:{rank_by}", pl.col("reason").cast(pl.String)
    return (reason == kind) | reason.str.starts_with(f"{kind}:")


# -- fitting ----------------------------------------------------------------------------------------------------------


def fit_cut(policy: Policy, pool: Rows) -> PolicyCut:
    """The policy's cuts on a pool, to be frozen. No column of the pool is held beyond HELD_VALUES numbers.

    DataComp's rule derives every threshold from all samples that raw kept, before any other filter (formulas.md §3.2).
    Raises NothingToCutError for a compat policy where no sample has a value, and what reading a signal raises.
    """
    seen = Changed(pool, lambda rows: remaining(policy, rows))
    identity = _Identity(sorted({step.rank_by for step in policy.steps}))
    cuts: list[Cut] = []
    for step in policy.steps:
        first = seen if cuts else Changed(seen, identity.add, Wanted.of(policy, with_reasons=False))
        cuts.append(_fit_step(policy, _Values(policy, seen, tuple(cuts), step.rank_by, first), step, identity))
    return PolicyCut(policy.name, policy.version, identity.count, identity.digest(), tuple(cuts))


def judge_pool(
    policy: Policy, pool: Rows, cut: PolicyCut | None = None, more: Wanted = NOTHING_MORE
) -> Iterator[pl.DataFrame]:
    """Verdicts of all rows, part by part: by a frozen cut, or by one fitted on these very rows."""
    cut = fit_cut(policy, pool) if cut is None else cut
    for rows in pool.parts(Wanted.of(policy) | more):
        yield judge(policy, remaining(policy, rows), cut)


def cut_without(policy: Policy, cut: PolicyCut, pool: Rows, sample_ids: Collection[str]) -> PolicyCut:
    """The same cut, which names none of the samples, and by which every other row keeps its verdict.

    `pool`: the rows that are left, as the policy's cuts see them (`remaining`); read where the cut names one.
    Thresholds stay. Raises as `judge`.
    """
    named = [number for number, one in enumerate(cut.cuts) if one.boundary_id in sample_ids]
    last = dict.fromkeys(named, NO_ID)  # of the values equal to the threshold the last that passes
    for rows in pool.parts(Wanted.of(policy)) if named else ():
        for number in named:
            passing = rows[_reaching(rows, cut.cuts[: number + 1])]
            ties = passing.filter(pl.col(cut.cuts[number].rank_by) == cut.cuts[number].threshold)
            last[number] = max([last[number], *ties["sample_id"]])
    cuts = (replace(one, boundary_id=last.get(number, one.boundary_id)) for number, one in enumerate(cut.cuts))
    return replace(cut, cuts=tuple(cuts))


def _reaching(rows: pl.DataFrame, cuts: Sequence[Cut]) -> np.ndarray:
    """(M,) positions, ascending, of rows that raw kept and that pass all of the cuts."""
    candidates = (rows["status"] == "kept").arg_true().to_numpy()
    for cut in cuts:
        values = values_of(rows, cut.rank_by)[candidates]
        candidates = candidates[cut.passes(values, rows["sample_id"].gather(candidates))]
    return candidates


@dataclass
class _Identity:
    """Which rows raw kept, with which values, in any order: counted while they are read."""

    references: Sequence[str]
    count: int = 0
    total: int = 0

    def add(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Count rows in, which are given back."""
        kept = rows.filter(pl.col("status") == "kept")
        numbers = [floats(kept[reference]) for reference in self.references]
        self.count += kept.height
        if kept.height:
            of_rows = row_hashes([*words_of(kept["sample_id"]).T, *(bits_of(values) for values in numbers)])
            self.total = (self.total + int(of_rows.sum(dtype=np.uint64))) % 2**64
        return rows

    def digest(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(f"{self.references} {self.count} {self.total}".encode()).hexdigest()


@dataclass
class _Values:
    """Values, higher is better, of the rows that reach a cut: held where they are few, else read again."""

    policy: Policy
    pool: Rows
    cuts: Sequence[Cut]
    rank_by: str
    first: Rows  # as `pool`, for the first look
    candidates: int = 0
    valued: int = 0
    held: list[np.ndarray] | None = field(default_factory=list)
    _sampled: list[np.ndarray] = field(default_factory=list)
    _stride: int = 1

    def __post_init__(self) -> None:
        for values, _ in self._parts(self.first):
            self.candidates += len(values)
            values = values[~np.isnan(values)]
            self.valued += len(values)
            if self.held is not None:
                self.held.append(values)
            self._sample(values)
            if self.valued > HELD_VALUES:
                self.held = None

    def _sample(self, values: np.ndarray) -> None:
        """Every so many-th value, so that some SAMPLED are held."""
        self._sampled.append(values[:: self._stride])
        if sum(map(len, self._sampled)) > SAMPLED:
            self._sampled, self._stride = [np.concatenate(self._sampled)[::2]], 2 * self._stride

    def quantiles(self) -> tuple[float, ...]:
        """In the signal's unit, from the worst."""
        values = np.sort(np.concatenate([*self._sampled, np.zeros(0)]))
        if not len(values):
            return ()
        at = np.minimum(np.arange(QUANTILES) * len(values) // (QUANTILES - 1), len(values) - 1)
        return tuple(oriented(self.rank_by, values[at]).tolist())

    def _parts(self, pool: Rows, only: Collection[int] | None = None) -> Iterator[tuple[np.ndarray, pl.Series]]:
        """(M,) values and their sample_ids, part by part."""
        wanted = Wanted.of(self.policy, steps=len(self.cuts) + 1, with_reasons=False)
        for rows in pool.parts(wanted | Wanted((self.rank_by,)), only):
            at = _reaching(rows, self.cuts)
            yield values_of(rows, self.rank_by)[at], rows["sample_id"].gather(at)

    def values(self) -> Iterator[np.ndarray]:
        """All of them."""
        yield from self.held if self.held is not None else (values for values, _ in self._parts(self.pool))

    def at_rank(self, rank: int) -> tuple[float, str]:
        """Value and id of the row of a rank, 1 is best; equal values go by id."""
        value, better = value_of_rank(self.values, rank)
        only = None if self.held is None else [at for at, values in enumerate(self.held) if (values == value).any()]
        ties = ((ids, np.flatnonzero(found == value)) for found, ids in self._parts(self.pool, only))
        return value, id_of_rank((ids.gather(at) for ids, at in ties), rank - better)


def _fit_step(policy: Policy, reached: _Values, step: Step, pool: _Identity) -> Cut:
    """A step's cut among the rows that reach it."""

    def cut(kept: int, threshold: float | None, boundary_id: str | None) -> Cut:
        unit = None if threshold is None else oriented(step.rank_by, threshold)
        return Cut(step.rank_by, reached.candidates, reached.valued, kept, unit, boundary_id, reached.quantiles())

    if step.threshold is None and policy.semantics == "exact":
        kept = min(kept_count(step, pool.count), reached.valued)
        return cut(kept, *(reached.at_rank(kept) if kept else (None, None)))
    if step.threshold is not None:
        threshold = oriented(step.rank_by, float(step.threshold))
    else:
        assert step.fraction is not None, policy
        everyone = reached
        if reached.candidates < pool.count:
            everyone = _Values(policy, reached.pool, (), step.rank_by, reached.pool)
        if not everyone.valued:
            raise NothingToCutError(f"policy {policy.name!r}: no sample has a value of {step.rank_by}; nothing to cut")
        threshold, _ = value_of_rank(everyone.values, compat_rank(everyone.valued, step.fraction))
    return cut(sum(int(np.count_nonzero(values >= threshold)) for values in reached.values()), threshold, None)
