"""Verdicts on whole arrays: a policy's cut and the terminal state of every row, without a loop over rows."""

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from curation_assets.numeric.identity import to_u64_pair
from curation_assets.numeric.sorting import argsort
from curation_assets.selection.cut import Cut, PolicyCut, check_cut, kept_count
from curation_assets.selection.policy import Policy, Step
from curation_assets.selection.rows import DROPPED, FAILED, KEPT, PoolRows, Texts

Result = TypeVar("Result")


@dataclass(frozen=True)
class Judged:
    """One terminal verdict per row of `PoolRows`, in its order."""

    policy: Policy
    cut: PolicyCut  # as fitted, or the frozen one that was applied
    counts: tuple[tuple[int, int, int], ...]  # per step, of these rows: reached it, have a value, pass
    step: np.ndarray  # (N,) int8: which cut decided; -1 where raw did not keep the row
    rank: np.ndarray  # (N,) uint32: 1 is best among the samples that reached that cut; 0 without a value
    verdict: np.ndarray  # (N,) int8, as STATES
    reason: Texts  # null exactly where kept

    @property
    def is_kept(self) -> np.ndarray:
        """(N,) bool: the subset."""
        return self.verdict == KEPT

    def decided_value(self, rows: PoolRows) -> np.ndarray:
        """(N,) value in the unit of the cut that decided, NaN where there is none."""
        value = np.full(len(rows), np.nan)
        for number, one in enumerate(self.cut.cuts):
            here = self.step == number
            value[here] = rows.signal(one.rank_by, self.policy.seed).values[here]
        return value

    @property
    def threshold(self) -> np.ndarray:
        """(N,) threshold of the cut that decided, NaN where there is none (or it keeps nothing)."""
        by_step = np.array([*(one.threshold for one in self.cut.cuts), np.nan])
        by_step[~np.isfinite(by_step)] = np.nan
        return by_step[self.step]  # step -1 takes the last


def judge(policy: Policy, rows: PoolRows, cut: PolicyCut | None = None) -> Judged:
    """Judge every row of a pool of any size: by a cut fitted on it (as `policies.apply_policy`), or by a frozen one.

    Raises ValueError for a cut of another policy, or of another version of it.
    """
    if cut is not None:
        check_cut(policy, cut)
    n = len(rows)
    step = np.full(n, -1, dtype=np.int8)
    rank = np.zeros(n, dtype=np.uint32)
    verdict, reason = rows.status.copy(), rows.raw_reason.codes.copy()
    words = [*rows.raw_reason.words, "no_reason"]
    reason[(verdict != KEPT) & (reason < 0)] = len(words) - 1
    at_stake = np.flatnonzero(rows.is_kept)  # ascending, and so by sample_id: a stable sort breaks ties as we want
    reason[at_stake] = -1
    pool_size = len(at_stake)
    steps = policy.steps
    for one in steps:
        rows.signal(one.rank_by, policy.seed)  # raises what reading raises, before anything is begun
    fingerprint = in_background(pool_fingerprint, rows, policy) if cut is None else None
    cuts: list[Cut] = []
    counts: list[tuple[int, int, int]] = []
    for number, one in enumerate(steps):
        rank_by = one.rank_by
        signal = rows.signal(rank_by, policy.seed)
        values = signal.values[at_stake]
        order = _best_first(values)  # positions in at_stake
        valued = len(order)
        place = np.zeros(len(values), dtype=np.uint32)  # rank among those at stake, 0 without a value
        place[order] = np.arange(1, valued + 1, dtype=np.uint32)
        if cut is None:
            count, threshold, boundary = _cut(policy, values[order], pool_size, one)
            last = _id(rows, at_stake[order[count - 1]] if boundary else None)
            cuts.append(Cut(rank_by, len(at_stake), valued, count, threshold, last))
        else:
            count = _passing(cut.cuts[number], rows, values, at_stake)
        counts.append((len(at_stake), valued, count))
        step[at_stake], rank[at_stake] = number, place
        below, unvalued = at_stake[place > count], at_stake[place == 0]
        verdict[below], verdict[unvalued] = DROPPED, FAILED
        reason[below] = len(words)
        words.append(f"{'below_cut' if number == len(steps) - 1 else 'prefilter'}:{rank_by}")
        codes = signal.reasons.codes[unvalued]
        reason[unvalued] = len(words) + np.where(codes < 0, len(signal.reasons.words), codes)
        words += [f"no_value:{word}" for word in (*signal.reasons.words, "no_reason")]
        at_stake = at_stake[(place > 0) & (place <= count)]
    if cut is None:
        assert fingerprint is not None, policy
        cut = PolicyCut(policy.name, policy.version, pool_size, fingerprint.result(), tuple(cuts))
    return Judged(
        policy,
        cut,
        tuple(counts),
        step,
        rank,
        verdict,
        _without_repeats(Texts(reason, words)),
    )


def in_background(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Begin what runs outside Python's lock, such as a hash of arrays, beside what comes next."""
    executor = ThreadPoolExecutor(1)
    begun = executor.submit(function, *arguments)
    executor.shutdown(wait=False)
    return begun


def _best_first(values: np.ndarray) -> np.ndarray:
    """(M,) values → (V,) positions of those that are no NaN, highest value first, ties in order of position."""
    there = np.flatnonzero(~np.isnan(values))
    return there[argsort(-values[there])]


def _passing(one: Cut, rows: PoolRows, values: np.ndarray, positions: np.ndarray) -> int:
    """How many pass a frozen cut. `values` (M,) of the rows at `positions` (M,), which are sorted by sample_id."""
    if one.boundary_id is None:
        return int((values >= one.threshold).sum())
    high, low = (np.uint64(half) for half in to_u64_pair(one.boundary_id))
    tied = positions[values == one.threshold]
    before = (rows.uid_high[tied] < high) | ((rows.uid_high[tied] == high) & (rows.uid_low[tied] <= low))
    return int((values > one.threshold).sum() + before.sum())


def _cut(policy: Policy, ordered: np.ndarray, pool_size: int, step: Step) -> tuple[int, float, bool]:
    """(how many pass, the smallest passing value, whether ties at it go by sample_id). `ordered` (M,) best first."""
    if step.threshold is not None:
        return int((ordered >= step.threshold).sum()), float(step.threshold), False
    if policy.semantics == "compat":
        assert step.fraction is not None, policy
        if not len(ordered):
            raise ValueError(f"policy {policy.name!r}: no sample has a value of {policy.rank_by}; nothing to cut")
        threshold = float(ordered[int(len(ordered) * step.fraction)])
        return int((ordered >= threshold).sum()), threshold, False
    count = min(kept_count(step, pool_size), len(ordered))
    return (count, float(ordered[count - 1]), True) if count else (0, np.inf, False)


def _id(rows: PoolRows, position: int | None) -> str | None:
    if position is None:
        return None
    return f"{int(rows.uid_high[position]):016x}{int(rows.uid_low[position]):016x}"


def _without_repeats(texts: Texts) -> Texts:
    """One code per word: two cuts by one signal name their reasons alike."""
    words = list(dict.fromkeys(texts.words))
    table = np.array([words.index(word) for word in texts.words], dtype=np.int32)
    return Texts(np.where(texts.codes < 0, -1, table[texts.codes]).astype(np.int32), words)


def pool_fingerprint(rows: PoolRows, policy: Policy) -> str:
    """sha256 over the ids that raw kept and, in their order, the values that the policy ranks by."""
    kept = rows.is_kept
    digest = hashlib.sha256(rows.uid_high[kept].astype("<u8").tobytes())
    digest.update(rows.uid_low[kept].astype("<u8").tobytes())
    for rank_by in sorted({policy.rank_by, *(one.rank_by for one in policy.prefilters)}):
        values = rows.signal(rank_by, policy.seed).values[kept]
        digest.update(f"\0{rank_by}\0".encode())
        digest.update(np.where(np.isnan(values), np.nan, values + 0.0).astype("<f8").tobytes())
    return digest.hexdigest()
