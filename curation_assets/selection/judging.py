"""The judge: a policy's cuts of a pool, and by them the terminal state of every row. On arrays, for pools of any size.

Verdict tables of shards, ledgers, plans and differences of policies are all judged here; the rule of one cut is in
`numeric.selection`.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl

from curation_assets.methods import lower_is_better, oriented
from curation_assets.numeric.selection import NOTHING, Cutoff, count_valued, ranks, top_count, top_share_compat
from curation_assets.numeric.sorting import STRETCH, gather, positions, stretches
from curation_assets.selection.cut import NO_ID, Cut, PolicyCut, check_cut, kept_count
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import DROPPED, FAILED, KEPT, STATES, Parted, PoolRows, Texts, code_type

Result = TypeVar("Result")

#: Grain: one row per row of raw/samples, in its order.
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


class NothingToCutError(ValueError):
    """No sample has a value of the signal that a policy with semantics 'compat' cuts by."""


@dataclass(frozen=True)
class Judged:
    """One terminal verdict per row of `rows`, in its order."""

    policy: Policy
    rows: PoolRows
    cut: PolicyCut  # as fitted, or the frozen one that was applied
    counts: tuple[tuple[int, int, int], ...]  # per cut, of these rows: reached it, have a value, pass
    step: np.ndarray  # (N,) int8: which cut decided; -1 where none did
    verdict: np.ndarray  # (N,) int8, as STATES
    reason: Texts  # null exactly where kept

    @property
    def is_kept(self) -> np.ndarray:
        """(N,) bool: the subset."""
        return self.verdict == KEPT

    @property
    def multiplicity(self) -> np.ndarray:
        """(N,) int64: how often each row is in the subset."""
        by = self.policy.rank_by
        return multiplicity(self.is_kept, self.rows.signal(by).values if self.policy.repeats else None)

    @cached_property
    def rank(self) -> np.ndarray:
        """(N,) uint32: 1 is best among the samples that reached the cut that decided; 0 without a value."""
        rank = np.zeros(len(self.rows), dtype=np.uint32)
        for number, cut in enumerate(self.cut.cuts):
            reached = self.step >= number
            values = self.rows.signal(cut.rank_by, self.policy.seed).values
            if 2 * np.count_nonzero(reached) > len(reached):  # most rows: no need to put them together
                np.copyto(rank, ranks(oriented(cut.rank_by, np.where(reached, values, np.nan))), where=reached)
            else:
                candidates = positions(reached)
                rank[candidates] = ranks(oriented(cut.rank_by, gather(values, candidates)))
        return rank

    @property
    def value(self) -> np.ndarray:
        """(N,) value in the unit of the cut that decided, NaN where there is none."""
        return self.value_in(slice(None))

    @property
    def threshold(self) -> np.ndarray:
        """(N,) threshold of the cut that decided, NaN where there is none (or it keeps nothing)."""
        return self.threshold_in(slice(None))

    @property
    def margin(self) -> np.ndarray:
        """(N,) value − threshold, threshold − value where lower is better; NaN where there is none or one of both is
        infinite."""
        return self.margin_in(slice(None))

    def value_in(self, part: slice) -> np.ndarray:
        """`value` of some rows."""
        step = self.step[part]
        value = np.full(len(step), np.nan)
        for number, cut in enumerate(self.cut.cuts):
            decided = step == number
            value[decided] = self.rows.signal(cut.rank_by, self.policy.seed).values[part][decided]
        return value

    def threshold_in(self, part: slice) -> np.ndarray:
        """`threshold` of some rows."""
        by_step = np.array([*(cut.threshold for cut in self.cut.cuts), None], dtype=np.float64)  # None becomes NaN
        return by_step[self.step[part]]  # step -1 takes the last

    def margin_in(self, part: slice) -> np.ndarray:
        """`margin` of some rows."""
        with np.errstate(invalid="ignore"):
            margin = self.value_in(part) - self.threshold_in(part)
        for number, cut in enumerate(self.cut.cuts):
            if lower_is_better(cut.rank_by):
                np.negative(margin, where=self.step[part] == number, out=margin)
        return np.where(np.isfinite(margin), margin, np.nan)

    def verdict_in(self, part: slice) -> np.ndarray:
        """`verdict` of some rows."""
        return self.verdict[part]

    def parts(self) -> Iterator["Judged"]:
        """Itself: of a larger pool (selection/part_by_part.py) there are several parts."""
        yield self

    def by_shards(self) -> Iterator["Judged"]:
        """Itself, in parts of whole shards: one."""
        yield self

    def frame(self) -> pl.DataFrame:
        """As a table (VERDICT_SCHEMA), rows in the order of raw/samples."""
        rows = self.rows
        frame = pl.DataFrame(
            [
                rows.sample_ids,
                rows.shard.series("shard"),
                pl.Series("source_row", rows.source_row),
                Texts(self.step, [cut.rank_by for cut in self.cut.cuts]).series("decided_by"),
                pl.Series("value", self.value),
                pl.Series("threshold", self.threshold),
                pl.Series("margin", self.margin),
                Texts(self.verdict, list(STATES)).series("verdict"),
                self.reason.series("reason"),
            ]
        )
        return frame[rows.stored_order].cast(pl.Schema(VERDICT_SCHEMA)).with_columns(pl.col(pl.Float64).fill_nan(None))


def judge(policy: Policy, rows: PoolRows, cut: PolicyCut | None = None) -> Judged:
    """Judge every row of a pool, or of some shards of it: by a frozen cut, or by one fitted on them.

    A row that raw did not keep stays as it is, with raw's reason; one that the policy leaves out (its licence, a
    benchmark) is dropped like such. Others are kept; dropped, `prefilter:<rank_by>` or
    `below_cut:<rank_by>` and, after a further colon, what the table says of the row; or failed, `no_value:<reason>`.
    Raises ValueError for a cut of another policy, or of another version of it, and what reading a signal raises.
    """
    rows = remaining(policy, rows)
    if cut is None:
        cut = _fit_cut(policy, rows)
    check_cut(policy, cut)
    step, verdict = np.full(len(rows), -1, dtype=np.int8), rows.status.copy()
    words, codings = _reasons(policy, rows)
    codes = gather(_narrow([*range(len(rows.raw_reason.words)), -1], len(words)), rows.raw_reason.codes)
    codes[verdict == KEPT] = -1
    codes[(verdict != KEPT) & (codes < 0)] = words.index("no_reason")
    counts = np.zeros((len(cut.cuts), 3), dtype=np.int64)
    for part in stretches(len(rows)):
        candidates = part.start + np.flatnonzero(rows.status[part] == KEPT)
        for number, reached in enumerate(_cut_by_cut(policy, rows, _frozen(cut.cuts, rows), candidates)):
            candidates, is_missing = reached.candidates, np.isnan(reached.values)
            step[candidates] = number
            below = candidates[np.flatnonzero(~(reached.passes | is_missing))]
            failed = candidates[np.flatnonzero(is_missing)]
            verdict[below], verdict[failed] = DROPPED, FAILED
            signal = rows.signal(reached.rank_by, policy.seed)
            why_below = -1 if signal.drop_reasons is None else signal.drop_reasons.codes[below]
            codes[below] = codings[number].below[why_below]
            codes[failed] = codings[number].failed[signal.reasons.codes[failed]]
            counts[number] += len(candidates), len(candidates) - len(failed), reached.kept
    return Judged(
        policy, rows, cut, tuple((reached, valued, kept) for reached, valued, kept in counts.tolist()), step, verdict,
        Texts(codes, words),
    )  # fmt: skip


@dataclass(frozen=True)
class _Coding:
    """Codes of the reasons that one cut gives. The last of each takes code -1."""

    below: np.ndarray  # by the code of what the table says of the row
    failed: np.ndarray  # by the code of why there is no value


def _reasons(policy: Policy, rows: PoolRows) -> tuple[list[str], list[_Coding]]:
    """Words that a verdict of the policy may have, each once, raw's first; and their codes, cut by cut."""
    code_of = {word: code for code, word in enumerate(rows.raw_reason.words)}
    code_of.setdefault("no_reason", len(code_of))
    worded: list[tuple[list[str], list[str]]] = []
    for number, cut_step in enumerate(policy.steps):
        signal = rows.signal(cut_step.rank_by, policy.seed)
        kind = f"{'below_cut' if number == len(policy.steps) - 1 else 'prefilter'}:{cut_step.rank_by}"
        details = [] if signal.drop_reasons is None else signal.drop_reasons.words
        below = [*(f"{kind}:{word}" for word in details), kind]
        failed = [f"no_value:{word}" for word in (*signal.reasons.words, "no_reason")]
        for word in (*below, *failed):  # two cuts by one signal name their reasons alike
            code_of.setdefault(word, len(code_of))
        worded.append((below, failed))
    count = len(code_of)
    codings = [_Coding(*(_narrow([code_of[word] for word in some], count) for some in both)) for both in worded]
    return list(code_of), codings


def _narrow(codes: list[int], count: int) -> np.ndarray:
    """Codes of `count` words as the smallest numbers that hold them."""
    return np.array(codes, dtype=code_type(count))


def multiplicity(is_kept: np.ndarray, values: np.ndarray | None) -> np.ndarray:
    """(N,) bool → (N,) int64: once where kept; with the values of a policy that repeats, so often, rounded down."""
    if values is None:
        return is_kept.astype(np.int64)
    times = np.zeros(len(is_kept), dtype=np.int64)
    times[is_kept] = np.maximum(np.floor(values[is_kept]), 1).astype(np.int64)
    return times


def reason_kind(reason: pl.Expr) -> pl.Expr:
    """'below_cut:fused.x:concept full: logo' → 'below_cut:fused.x'; any other reason as it is."""
    kind = reason.cast(pl.String).str.extract(r"^((?:below_cut|prefilter):[^:]+)", 1)
    return pl.coalesce(kind, reason.cast(pl.String))


def fit_cut(policy: Policy, rows: PoolRows) -> PolicyCut:
    """The policy's cuts on a pool, to be frozen. Raises ValueError for a compat policy where no sample has a value."""
    return _fit_cut(policy, remaining(policy, rows))


def _fit_cut(policy: Policy, rows: PoolRows) -> PolicyCut:
    for step in policy.steps:
        rows.signal(step.rank_by, policy.seed)  # raises what reading raises, before anything is begun
    fingerprint = in_background(pool_fingerprint, rows, policy)
    cuts = tuple(
        Cut(
            rank_by=reached.rank_by,
            candidates=len(reached.candidates),
            valued=count_valued(reached.values),
            kept=reached.kept,
            threshold=None if reached.cutoff == NOTHING else oriented(reached.rank_by, reached.cutoff.threshold),
            boundary_id=_boundary_id(rows, reached),
        )
        for reached in _cut_by_cut(policy, rows, _fitted(policy, rows), positions(rows.is_kept))
    )
    return PolicyCut(policy.name, policy.version, int(np.count_nonzero(rows.is_kept)), fingerprint.result(), cuts)


def kept_rows(policy: Policy, rows: PoolRows) -> np.ndarray:
    """(N,) bool, `judge(policy, rows).is_kept`: the subset alone, without reasons and fingerprint."""
    rows = remaining(policy, rows)
    kept = np.zeros(len(rows), dtype=bool)
    passing = positions(rows.is_kept)
    for reached in _cut_by_cut(policy, rows, _fitted(policy, rows), passing):
        passing = reached.passing
    kept[passing] = True
    return kept


# -- cut by cut -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reached:
    """One cut of a policy, and the rows that reached it."""

    rank_by: str
    candidates: np.ndarray  # (M,) rows, ascending, and so in order of sample_id
    values: np.ndarray  # (M,) float64, higher is better, NaN without a value
    cutoff: Cutoff
    passes: np.ndarray  # (M,) bool: these reach the next cut

    @property
    def kept(self) -> int:
        """How many pass."""
        return int(np.count_nonzero(self.passes))

    @property
    def passing(self) -> np.ndarray:
        """(K,) rows that pass, ascending."""
        if len(self.candidates) <= STRETCH:
            return self.candidates[np.flatnonzero(self.passes)]  # a quarter of the time of a mask
        return gather(self.candidates, positions(self.passes))


#: (number of the cut, its candidates (M,), their values (M,), higher is better) → where it falls among these.
_CutoffOf = Callable[[int, np.ndarray, np.ndarray], Cutoff]


def _cut_by_cut(policy: Policy, rows: PoolRows, cutoff_of: _CutoffOf, candidates: np.ndarray) -> Iterator[_Reached]:
    """`candidates` (M,): rows that raw kept, ascending."""
    for number, step in enumerate(policy.steps):
        values = oriented(step.rank_by, gather(rows.signal(step.rank_by, policy.seed).values, candidates))
        cutoff = cutoff_of(number, candidates, values)
        reached = _Reached(step.rank_by, candidates, values, cutoff, cutoff.passes(values))
        yield reached
        candidates = reached.passing


def _fitted(policy: Policy, rows: PoolRows) -> _CutoffOf:
    """Every cut falls where these very rows put it.

    DataComp derives every threshold from all samples that raw kept, before any other filter (formulas.md §3.2).
    """
    pool_size = int(np.count_nonzero(rows.is_kept))

    def cutoff_of(number: int, candidates: np.ndarray, values: np.ndarray) -> Cutoff:
        step = policy.steps[number]
        if step.threshold is not None:
            return Cutoff(oriented(step.rank_by, float(step.threshold)))
        if policy.semantics == "exact":
            return top_count(values, kept_count(step, pool_size))
        assert step.fraction is not None, policy
        if len(candidates) < pool_size:
            everyone = gather(rows.signal(step.rank_by, policy.seed).values, positions(rows.is_kept))
            values = oriented(step.rank_by, everyone)
        if np.isnan(values).all():
            raise NothingToCutError(f"policy {policy.name!r}: no sample has a value of {step.rank_by}; nothing to cut")
        return top_share_compat(values, step.fraction)

    return cutoff_of


#: How far a value that is made again, on another machine or in another batch, may be from what it was: twenty times
#: what was seen (4e-8), relative to 1 or to the value. The row on which a cut fell does not fall out by it.
MADE_AGAIN = 1e-6


def _frozen(cuts: Sequence[Cut], rows: PoolRows) -> _CutoffOf:
    """Every cut falls where it fell on the rows that it was fitted on."""

    def cutoff_of(number: int, candidates: np.ndarray, values: np.ndarray) -> Cutoff:
        frozen = cuts[number]
        if frozen.threshold is None:
            return NOTHING
        threshold = oriented(frozen.rank_by, frozen.threshold)
        if frozen.boundary_id is None:
            return Cutoff(threshold)
        last = int(np.searchsorted(candidates, rows.count_up_to(frozen.boundary_id))) - 1
        is_edge = (
            last >= 0
            and np.isfinite(threshold)
            and 0 < threshold - values[last] <= MADE_AGAIN * max(1, abs(threshold))
            and id_at(rows, candidates[last]) == frozen.boundary_id
        )
        return Cutoff(threshold, last, last if is_edge else None)

    return cutoff_of


def reaching(policy: Policy, rows: PoolRows, cuts: Sequence[Cut]) -> np.ndarray:
    """(M,) rows, ascending, that the first cuts of a policy, frozen, let through."""
    candidates = positions(rows.is_kept)
    for reached in itertools.islice(_cut_by_cut(policy, rows, _frozen(cuts, rows), candidates), len(cuts)):
        candidates = reached.passing
    return candidates


def cut_without(policy: Policy, cut: PolicyCut, parts: Iterable[PoolRows], sample_ids: Collection[str]) -> PolicyCut:
    """The same cut, which names none of the samples, and by which every other row keeps its verdict.

    `parts`: the rows that are left, in order of their ids; read where the cut names one. Thresholds stay. Raises as
    `judge`.
    """
    named = [number for number, one in enumerate(cut.cuts) if one.boundary_id in sample_ids]
    last = dict.fromkeys(named, NO_ID)  # of the values equal to the threshold the last that passes
    for rows in parts if named else ():
        judged = judge(policy, rows, cut)
        for number in named:
            passes = (judged.step > number) | ((judged.step == number) & judged.is_kept)
            values = judged.rows.signal(cut.cuts[number].rank_by, policy.seed).values
            for row in np.flatnonzero(passes & (values == cut.cuts[number].threshold))[-1:]:
                last[number] = id_at(rows, row)
    cuts = (replace(one, boundary_id=last.get(number, one.boundary_id)) for number, one in enumerate(cut.cuts))
    return replace(cut, cuts=tuple(cuts))


def _boundary_id(rows: PoolRows, reached: _Reached) -> str | None:
    last = reached.cutoff.last_tie
    return None if last is None or last < 0 else id_at(rows, reached.candidates[last])


def id_at(rows: PoolRows, row: int) -> str:
    """The sample_id of a row."""
    return f"{int(rows.uid_high[row]):016x}{int(rows.uid_low[row]):016x}"


def pool_fingerprint(pool: Parted, policy: Policy) -> str:
    """sha256 over the ids that raw kept and, in their order, the values that the policy ranks by.

    `pool`: the rows without those that the policy leaves out.
    """
    digest = hashlib.sha256()

    def update(column_of: Callable[[PoolRows], np.ndarray]) -> None:
        for rows in pool.parts():
            column = column_of(rows)
            for part in stretches(len(rows)):
                kept = column[part][rows.status[part] == KEPT]
                if kept.dtype == np.float64:
                    kept = np.where(np.isnan(kept), np.nan, kept + 0.0)
                digest.update(kept.astype(kept.dtype.newbyteorder("<")).data)

    update(lambda rows: rows.uid_high)
    update(lambda rows: rows.uid_low)
    for rank_by in sorted({step.rank_by for step in policy.steps}):
        digest.update(f"\0{rank_by}\0".encode())
        update(lambda rows, rank_by=rank_by: rows.signal(rank_by, policy.seed).values)  # type: ignore[misc]
    return digest.hexdigest()


def in_background(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Begin what runs outside Python's lock, such as a hash of arrays, beside what comes next."""
    executor = ThreadPoolExecutor(1)
    future = executor.submit(function, *arguments)
    executor.shutdown(wait=False)
    return future
