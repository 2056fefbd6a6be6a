"""Cuts, verdicts and ranks of a whole pool, part by part where it is larger than memory: as `judging` gives at once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from curation_assets.methods import oriented
from curation_assets.numeric.selection import value_of_rank
from curation_assets.numeric.sorting import argsort, inverse, ordinals, stretches
from curation_assets.selection.cut import Cut, PolicyCut, check_cut, kept_count
from curation_assets.selection.judging import (
    Judged,
    NothingToCutError,
    fit_cut,
    id_at,
    in_background,
    judge,
    kept_rows,
    pool_fingerprint,
    reaching,
)
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import Policy, Step
from curation_assets.selection.ranges import PART_ROWS, Column, SortedPool
from curation_assets.selection.rows import STATES, PoolRows, Texts, code_type
from curation_assets.stores.atomic import remove_path

DRAWN = 1_000_000  # values of which the bounds of the ranges that are ranked one by one are quantiles
Pool = PoolRows | SortedPool


@dataclass(frozen=True)
class _Remaining:
    """The parts of a pool as a policy's cuts see them."""

    policy: Policy
    pool: SortedPool
    changed: Callable[[PoolRows], PoolRows] = lambda rows: rows  # before the policy sees them

    def parts(self) -> Iterator[PoolRows]:
        return (remaining(self.policy, self.changed(rows)) for rows in self.pool.parts())

    def size(self) -> int:
        return sum(int(np.count_nonzero(rows.is_kept)) for rows in self.parts())

    def reaching(self, cuts: list[Cut], step: Step) -> Iterator[tuple[PoolRows, np.ndarray, np.ndarray]]:
        """Of every part, (M,) rows that pass `cuts`, ascending, and their values by `step`, higher is better."""
        for rows in self.parts():
            candidates = reaching(self.policy, rows, cuts)
            values = rows.signal(step.rank_by, self.policy.seed).values[candidates]
            yield rows, candidates, oriented(step.rank_by, values)


def fit_pool_cut(policy: Policy, pool: Pool) -> PolicyCut:
    """As `judging.fit_cut`, of a pool in memory or on disk."""
    if isinstance(pool, PoolRows):
        return fit_cut(policy, pool)
    for step in policy.steps:
        next(pool.parts()).signal(step.rank_by, policy.seed)  # what is read here, no thread reads
    seen = _Remaining(policy, pool)
    size = seen.size()
    fingerprint = in_background(pool_fingerprint, seen, policy)
    cuts: list[Cut] = []
    with pool.progress.task(f"cuts of {policy.name}", len(policy.steps)) as advance:
        for step in policy.steps:
            cuts.append(_fit(policy, seen, cuts, step, size))
            advance(1)
    return PolicyCut(policy.name, policy.version, size, fingerprint.result(), tuple(cuts))


def kept_parts(
    policy: Policy, pool: Pool, changed: Callable[[PoolRows], PoolRows] = lambda rows: rows
) -> Iterator[np.ndarray]:
    """As `judging.kept_rows`, (n,) bool of part after part. `changed`: a part's rows → those that the policy sees."""
    if isinstance(pool, PoolRows):
        yield kept_rows(policy, changed(pool))
        return
    seen = _Remaining(policy, pool, changed)
    size, cuts = seen.size(), list[Cut]()
    for step in policy.steps:
        cuts.append(_fit(policy, seen, cuts, step, size))
    for rows in seen.parts():
        kept = np.zeros(len(rows), dtype=bool)
        kept[reaching(policy, rows, cuts)] = True
        yield kept


def by_shards(pool: Pool, column: Iterable[np.ndarray]) -> Iterator[tuple[PoolRows, np.ndarray]]:
    """Rows of whole shards, some shards after the other, and what a column has for them. `column`: uint8, (n,) of every
    part of the pool."""
    if isinstance(pool, PoolRows):
        yield pool, np.concatenate(list(column))
        return
    whole = pool.new_column("by_shards", np.uint8)
    for part in column:
        whole.append(part)
    for rows, found in pool.by_group({"by_shards": whole}):
        yield rows, found["by_shards"]


def _fit(policy: Policy, seen: _Remaining, cuts: list[Cut], step: Step, pool_size: int) -> Cut:
    """The next cut after `cuts`. Raises NothingToCutError."""
    candidates = valued = 0
    for _, rows, values in seen.reaching(cuts, step):
        candidates, valued = candidates + len(rows), valued + int(np.count_nonzero(~np.isnan(values)))
    cut = partial(Cut, step.rank_by, candidates, valued)
    if step.threshold is None and policy.semantics == "exact":
        kept = min(kept_count(step, pool_size), valued)
        if not kept:
            return cut(0, None, None)
        value, boundary_id = _at_rank(seen, cuts, step, kept)
        return cut(kept, oriented(step.rank_by, value), boundary_id)
    if step.threshold is not None:
        threshold = oriented(step.rank_by, float(step.threshold))
    else:
        assert step.fraction is not None, policy
        of_pool = sum(int(np.count_nonzero(~np.isnan(values))) for _, _, values in seen.reaching([], step))
        if not of_pool:
            raise NothingToCutError(f"policy {policy.name!r}: no sample has a value of {step.rank_by}; nothing to cut")
        threshold, _ = _at_rank(seen, [], step, int(of_pool * step.fraction) + 1)
    kept = sum(int(np.count_nonzero(values >= threshold)) for _, _, values in seen.reaching(cuts, step))
    return cut(kept, oriented(step.rank_by, threshold), None)


def _at_rank(seen: _Remaining, cuts: list[Cut], step: Step, rank: int) -> tuple[float, str]:
    """Value, higher is better, and id of the row of a rank (1 is best) among those with a value that pass `cuts`."""
    value, better = value_of_rank(lambda: (values for _, _, values in seen.reaching(cuts, step)), rank)
    left = rank - better
    for rows, candidates, values in seen.reaching(cuts, step):
        ties = np.flatnonzero(values == value)
        if left <= len(ties):
            return float(values[ties[left - 1]]), id_at(rows, candidates[ties[left - 1]])
        left -= len(ties)
    raise AssertionError(f"no row of rank {rank}")


@dataclass
class JudgedPool:
    """Verdicts of all rows of a sorted pool, on its disk; ranks, too, once they are looked at."""

    policy: Policy
    pool: SortedPool
    cut: PolicyCut
    name: str = "judged"  # of the files: another for verdicts that are looked at together
    counts: tuple[tuple[int, int, int], ...] = ()
    words: list[str] = field(default_factory=list)  # reasons
    used: dict[str, list[str]] = field(default_factory=dict)  # words of the columns of a ledger, of all rows
    _columns: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Judge part by part."""
        counts = np.zeros((len(self.cut.cuts), 3), dtype=np.int64)
        used: dict[str, set[str]] = {"decided_by": set(), "verdict": set(), "reason": set()}
        with self.pool.progress.task(f"{self.policy.name}: rows judged", len(self.pool)) as advance:
            for rows in self.pool.parts():
                judged = judge(self.policy, rows, self.cut)
                codes = {"step": judged.step, "verdict": judged.verdict, "reason": judged.reason.codes}
                if not self._columns:
                    self.words = judged.reason.words  # the same of every part
                    kinds = {name: column.dtype for name, column in codes.items()}
                    kinds |= {"reason": np.dtype(code_type(len(self.words)))}
                    self._columns |= {
                        name: self.pool.new_column(f"{self.name}-{name}", kind) for name, kind in kinds.items()
                    }
                for name, column in codes.items():
                    self._columns[name].append(column)
                for name, texts in self._texts(*codes.values()).items():
                    used[name] |= set(texts.used)
                counts += np.array(judged.counts, dtype=np.int64)
                advance(len(rows))
        self.counts = tuple((reached, valued, kept) for reached, valued, kept in counts.tolist())
        self.used = {name: sorted(words) for name, words in used.items()}

    def _texts(self, step: np.ndarray, verdict: np.ndarray, reason: np.ndarray) -> dict[str, Texts]:
        words = {"decided_by": [cut.rank_by for cut in self.cut.cuts], "verdict": list(STATES), "reason": self.words}
        codes = {"decided_by": step, "verdict": verdict, "reason": reason}
        return {name: Texts(codes[name], words[name], self.used.get(name)) for name in words}

    def part(self, part: slice) -> Judged:
        """Some rows, as they are in raw/samples."""
        judged = self._part(part)
        vars(judged)["rank"] = self._ranks.read(part)  # among all rows of the pool
        return judged

    def _part(self, part: slice) -> Judged:
        step, verdict, reason = (column.read(part) for column in self._columns.values())
        texts = Texts(reason, self.words, self.used["reason"])
        return Judged(self.policy, self.pool.part(part), self.cut, self.counts, step, verdict, texts)

    def parts(self) -> Iterator[Judged]:
        """All rows, as the pool's parts; a rank is among the rows of a part."""
        return map(self._part, stretches(len(self.pool), PART_ROWS))

    def verdict_in(self, part: slice) -> np.ndarray:
        """(n,) codes of STATES of some rows."""
        return self._columns["verdict"].read(part)

    def by_shards(self) -> Iterator[Judged]:
        """Parts of whole shards: what a shard has is in one of them."""
        for rows, found in self.pool.by_group({name: self._columns[name] for name in ("step", "verdict", "reason")}):
            reason = Texts(found["reason"], self.words)
            yield Judged(self.policy, rows, self.cut, self.counts, found["step"], found["verdict"], reason)

    # -- ranks --------------------------------------------------------------------------------------------------------

    @cached_property
    def _ranks(self) -> Column:
        """(N,) uint32, as `Judged.rank`."""
        ranks = self.pool.new_column(f"{self.name}-rank", np.uint32)
        for part in stretches(len(self.pool), PART_ROWS):
            ranks.append(np.zeros(part.stop - part.start, dtype=np.uint32))
        for number in range(len(self.cut.cuts)):
            self._rank(number, ranks)
        return ranks

    def _rank(self, number: int, into: Column) -> None:
        """Ranks among all rows that reached a cut and have a value, for those that it decided on.

        The values go to ranges of them, each a file in order of id, which is sorted by itself.
        """
        parts = stretches(len(self.pool), PART_ROWS)
        bounds = _quantiles((self._reached(number, part)[1] for part in parts), self.counts[number][1])
        values = [self.pool.new_column(f"values{place}", np.uint64) for place in range(len(bounds) + 1)]
        starts = np.zeros((len(parts) + 1, len(values)), dtype=np.int64)  # of each part in each file
        for index, part in enumerate(parts):
            ordinal = self._reached(number, part)[1]
            order, ends = _placed(ordinal, bounds)
            for column, found in zip(values, np.split(ordinal[order], ends[:-1]), strict=True):
                column.append(found)
            starts[index + 1] = starts[index] + np.diff(ends, prepend=0)
        ranks = [self.pool.new_column(f"ranks{place}", np.uint32) for place in range(len(values))]
        better = np.cumsum([0, *starts[-1, ::-1]])[-2::-1].tolist()  # rows in the ranges of better values
        for place, size in enumerate(starts[-1].tolist()):
            is_one_value = 0 < place < len(bounds) and bounds[place] - bounds[place - 1] == 1
            for part in stretches(size, PART_ROWS if is_one_value else max(size, 1)):
                first = better[place] + part.start + 1
                ranks[place].append(inverse(argsort(~values[place].read(part))) + np.uint32(first))
        for index, part in enumerate(parts):
            rows, ordinal = self._reached(number, part)
            order, _ = _placed(ordinal, bounds)
            own = zip(ranks, starts[index].tolist(), starts[index + 1].tolist(), strict=True)
            rank = np.empty(len(rows), dtype=np.uint32)
            rank[order] = np.concatenate([column.read(slice(*here)) for column, *here in own])
            is_decided = self._columns["step"].read(part)[rows] == number
            into.read(part, "r+")[rows[is_decided]] = rank[is_decided]
        for column in (*values, *ranks):
            remove_path(column.path)

    def _reached(self, number: int, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Of some rows: (M,) those that reached a cut and have a value, and the ordinals of their values."""
        cut = self.cut.cuts[number]
        values = oriented(cut.rank_by, self.pool.part(part).values(cut.rank_by, self.policy.seed))
        rows = np.flatnonzero((self._columns["step"].read(part) >= number) & ~np.isnan(values))
        return rows, ordinals(values[rows])


def _quantiles(parts: Iterator[np.ndarray], total: int) -> np.ndarray:
    """`total` ordinals, part by part → ascending bounds between ranges of some PART_ROWS of them.

    A value that alone fills a range is a range.
    """
    rng, drawn = np.random.default_rng(0), [np.zeros(0, dtype=np.uint64)]
    for ordinal in parts:
        share = min(1.0, DRAWN / max(total, 1))
        drawn.append(ordinal[rng.random(len(ordinal)) < share])
    ordered = np.sort(np.concatenate(drawn))
    count = -(-total // PART_ROWS)
    bounds, times = np.unique(ordered[np.arange(1, count) * len(ordered) // max(count, 1)], return_counts=True)
    return np.unique(np.concatenate([bounds, bounds[times > 1] + np.uint64(1)]))


def _placed(ordinal: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(M,) ordinals → (M,) positions, range by range and in order in each; (V,) where each range ends among them."""
    place = np.searchsorted(bounds, ordinal, side="right").astype(np.uint16)
    return np.argsort(place, kind="stable"), np.cumsum(np.bincount(place, minlength=len(bounds) + 1))


def judge_pool(policy: Policy, pool: Pool, cut: PolicyCut | None = None, name: str = "judged") -> Judged | JudgedPool:
    """As `judging.judge`, of a pool in memory or on disk. `name`: as of `JudgedPool`."""
    if isinstance(pool, PoolRows):
        return judge(policy, pool, cut)
    cut = cut or fit_pool_cut(policy, pool)
    check_cut(policy, cut)
    return JudgedPool(policy, pool, cut, name)
