"""The difference between two policies on one pool: overlap, shifts, what each signal decides, nearest misses."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from curation_assets.audit.ledger import LedgerError, ledger_facts, ledger_rows_sha256, read_ledger, signal_column
from curation_assets.audit.recorded import current_ledgers, cuts_in_force, recorded_pool
from curation_assets.audit.shifts import Progress, marks_of, shifts
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import POOL_NAME
from curation_assets.core.table_names import SAMPLES
from curation_assets.methods import oriented
from curation_assets.numeric.selection import ranks, top_count
from curation_assets.numeric.sorting import stretches
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import Judged, reason_kind
from curation_assets.selection.leave_one_out import leave_one_out
from curation_assets.selection.part_by_part import Pool, judge_pool, kept_parts
from curation_assets.selection.policy import (
    Policy,
    Prefilter,
    load_policy,
    policy_content,
    shipped_policies,
)
from curation_assets.selection.ranges import PART_ROWS
from curation_assets.selection.rows import DROPPED, KEPT, STATES
from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import parquet_rows, scan_parquet
from curation_assets.stores.shard_store import ShardStore

NEAREST_COUNT = 10
#: Where the verdicts of a side come from.
RECORDED, FROZEN, FITTED = "recorded in its ledger", "judged now by its frozen cut", "judged now, cut fitted now"


@dataclass(frozen=True)
class Overlap:
    """How two subsets of one pool share their samples. Counts are of rows; a sample is kept in one row at most."""

    rows: int
    left: int
    right: int
    both: int

    @classmethod
    def of(cls, left: np.ndarray, right: np.ndarray) -> "Overlap":
        """(N,) bool and (N,) bool over the same rows."""
        if left.shape != right.shape:
            raise ValueError(f"both subsets must be of the same rows, got {left.shape} and {right.shape}")
        return cls(len(left), int(left.sum()), int(right.sum()), int((left & right).sum()))

    def __add__(self, other: "Overlap") -> "Overlap":
        """Of these rows and others."""
        return Overlap(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))

    @property
    def only_left(self) -> int:
        """Kept by the left policy alone."""
        return self.left - self.both

    @property
    def only_right(self) -> int:
        """Kept by the right policy alone."""
        return self.right - self.both

    @property
    def iou(self) -> float | None:
        """Intersection over union (Jaccard), in [0, 1]; None where both subsets are empty."""
        either = self.left + self.right - self.both
        return self.both / either if either else None

    def chance_iou(self, judged: int) -> float | None:
        """IoU of the expected counts if both had drawn their samples from `judged` ones at random."""
        if not judged or not self.left + self.right:
            return None
        both = self.left * self.right / judged
        return both / (self.left + self.right - both)


@dataclass(frozen=True)
class Difference:
    """Two policies on one pool: their verdicts."""

    left: Policy
    right: Policy
    overlap: Overlap
    judged: int  # rows that raw kept, less those left out before the first cut by the policy that leaves out fewer
    transitions: pl.DataFrame  # left_verdict, right_verdict, rows
    nearest: pl.DataFrame  # policy, sample_id, caption, url, decided_by, value, margin, other_verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "left": policy_content(self.left),
            "right": policy_content(self.right),
            "rows": self.overlap.rows,
            "judged": self.judged,
            "kept": {"left": self.overlap.left, "right": self.overlap.right, "both": self.overlap.both},
            "only_left": self.overlap.only_left,
            "only_right": self.overlap.only_right,
            "iou": self.overlap.iou,
            "chance_iou": self.overlap.chance_iou(self.judged),
            "transitions": self.transitions.to_dicts(),
            "nearest_dropped": self.nearest.to_dicts(),
        }


@dataclass(frozen=True)
class WholeDifference(Difference):
    """With whom each policy favours, and what each of its signals decides."""

    shifts: pl.DataFrame  # dimension, group, pool, left, right (rows), left_share, right_share, change
    leave_one_out: pl.DataFrame  # policy, without, kept, iou (with the whole policy)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        content = {"shifts": self.shifts.to_dicts(), "leave_one_out": self.leave_one_out.to_dicts()}
        return {**super().to_dict(), **content}


@dataclass(frozen=True)
class Side:
    """One of the two policies: its verdicts, and the samples that its last cut dropped by the smallest margin."""

    policy: Policy
    rows: int
    verdict_in: Callable[[slice], np.ndarray]  # some rows → (n,) int8, as STATES
    judged: int
    nearest: pl.DataFrame  # position, sample_id, shard, source_row, value, margin
    origin: str = FITTED

    def kept_in(self, part: slice) -> np.ndarray:
        """(n,) bool: which of some rows are in the subset."""
        return self.verdict_in(part) == KEPT


@dataclass
class Comparison:
    """Two policies on one pool, in steps: `verdicts` takes seconds where both are recorded, `whole` more."""

    store: ShardStore
    left: Side
    right: Side
    read_pool: Callable[[], Pool] = field(repr=False)

    @classmethod
    @contextmanager
    def of(
        cls,
        store: ShardStore,
        left: Policy,
        right: Policy,
        *,
        ledgers: Mapping[str, Path] | None = None,
        cuts: Mapping[str, PolicyCut] | None = None,
        nearest: int = NEAREST_COUNT,
        progress: ProgressReporter | None = None,
    ) -> Iterator["Comparison"]:
        """`ledgers`: policy → its ledger, of the rows that the pool has; a policy without one is judged.

        `cuts`: policy → the frozen cut that is applied; a policy without one is fitted. A pool larger than memory lies
        sorted on disk until the block ends. Raises LedgerError for ledgers of different rows, and what reading a signal
        raises.
        """
        paths = [(ledgers or {}).get(policy.name) for policy in (left, right)]
        recorded = [path for path in paths if path is not None]
        if len(recorded) == 2:
            _check_same_rows(*recorded)
        with ExitStack() as stack:
            read_pool = functools.cache(lambda: stack.enter_context(recorded_pool(store, recorded, progress)))

            def side(name: str, policy: Policy, path: Path | None) -> Side:
                if path is not None:
                    return recorded_side(path, nearest)
                return judged_side(read_pool(), policy, (cuts or {}).get(policy.name), nearest, name)

            yield cls(store, side("left", left, paths[0]), side("right", right, paths[1]), read_pool)

    @functools.cached_property
    def verdicts(self) -> Difference:
        """Overlap, transitions and nearest dropped samples."""
        return _difference(self.store, self.left, self.right)

    def whole(self, on_progress: Progress | None = None) -> WholeDifference:
        """With shifts and what each signal decides. `on_progress` gets how many shards are counted, of `shards`."""
        pool, sides = self.read_pool(), (self.left, self.right)
        different = sides[: 1 if self.left.policy == self.right.policy else 2]
        return WholeDifference(
            **vars(self.verdicts),
            shifts=shifts(pool, self._marks(pool), on_progress),
            leave_one_out=pl.concat([leave_one_out(pool, side.policy, side.kept_in) for side in different]),
        )

    def _marks(self, pool: Pool) -> Iterator[np.ndarray]:
        """Part after part, who kept each row."""
        start = 0
        for rows in pool.parts():
            part = slice(start, start := start + len(rows))
            yield marks_of(rows.is_kept, self.left.kept_in(part), self.right.kept_in(part))

    @property
    def shards(self) -> int:
        """Shards of the pool."""
        return len(self.store.partitions(SAMPLES))


def policy_comparison(
    store: ShardStore, left: Policy, right: Policy, progress: ProgressReporter | None = None
) -> AbstractContextManager[Comparison]:
    """Two policies of a pool: as their ledgers have them where those are current, else judged by their frozen cuts.

    Raises ValueError where both are the same policy, and what `Comparison.of` raises.
    """
    if left == right:
        raise ValueError(
            f"{left.name} and {right.name} are the same policy; name another, or change its fraction, threshold, "
            "ranking signal or prefilters"
        )
    both = [left, right]
    ledgers, cuts = current_ledgers(store, both), cuts_in_force(store, both)
    return Comparison.of(store, left, right, ledgers=ledgers, cuts=cuts, progress=progress)


def compare(pool: Pool, left: Policy, right: Policy, *, nearest: int = NEAREST_COUNT) -> WholeDifference:
    """Judge a pool by both policies, fitted on it, and compare their verdicts. Raises what reading a signal raises."""
    first, other = judged_side(pool, left, None, nearest, "left"), judged_side(pool, right, None, nearest, "right")
    return Comparison(pool.store, first, other, lambda: pool).whole()


def recorded_difference(left: Path, right: Path, store: ShardStore, *, nearest: int = NEAREST_COUNT) -> Difference:
    """Two policies as their ledgers have them, whatever the pool is now. Raises LedgerError for other rows."""
    _check_same_rows(left, right)
    return _difference(store, *(recorded_side(path, nearest) for path in (left, right)))


def iou_at(pool: Pool, left: Policy, right: Policy, fractions: Sequence[float]) -> pl.DataFrame:
    """IoU of two rankings at each fraction: fraction, left, right, both, iou, chance_iou. SIEVE §4.2; formulas.md §2.5.

    chance_iou: k / (2 − k) for two independent draws of a share k of the samples that raw kept.
    """
    records = []
    judged = sum(int(rows.is_kept.sum()) for rows in pool.parts())
    for fraction in fractions:
        kept = [kept_parts(policy.with_fraction(fraction), pool) for policy in (left, right)]
        overlap = sum(map(Overlap.of, *kept), Overlap(0, 0, 0, 0))
        records.append(
            {
                "fraction": fraction,
                "left": overlap.left,
                "right": overlap.right,
                "both": overlap.both,
                "iou": overlap.iou,
                "chance_iou": overlap.chance_iou(judged),
            }
        )
    schema = {"fraction": pl.Float64, "left": pl.Int64, "right": pl.Int64, "both": pl.Int64}
    return pl.DataFrame(records, schema={**schema, "iou": pl.Float64, "chance_iou": pl.Float64}, orient="row")


# -- the two sides ----------------------------------------------------------------------------------------------------


def judged_side(
    pool: Pool, policy: Policy, cut: PolicyCut | None = None, nearest: int = NEAREST_COUNT, name: str = "judged"
) -> Side:
    """Judge a pool by a policy: by a frozen `cut`, or by one fitted now. `name`: as of `JudgedPool`."""
    judged, start, near = judge_pool(policy, pool, cut, name), 0, []
    for some in judged.parts():
        near.append(_nearest_of(some, start, nearest))
        start += len(some.rows)
    found = pl.concat(near)  # in order of sample_id, which settles ties
    found = found[np.argsort(ranks(oriented(policy.rank_by, found["value"].to_numpy())))].head(nearest)
    return Side(policy, start, judged.verdict_in, judged.counts[0][0], found, FITTED if cut is None else FROZEN)


def _nearest_of(judged: Judged, start: int, count: int) -> pl.DataFrame:
    """`Side.nearest` of some rows, the first of which is at position `start`; in order of sample_id."""
    rows, policy = judged.rows, judged.policy
    values = rows.signal(policy.rank_by, policy.seed).values
    dropped = np.flatnonzero((judged.verdict == DROPPED) & (judged.step == len(judged.cut.cuts) - 1))
    worth = oriented(policy.rank_by, values[dropped])
    chosen = dropped[top_count(worth, count).passes(worth)]
    return pl.DataFrame(
        [
            pl.Series("position", start + chosen, dtype=pl.Int64),
            uid_texts(rows.uid_high[chosen], rows.uid_low[chosen]),
            pl.Series("shard", [rows.shard.words[code] for code in rows.shard.codes[chosen]], dtype=pl.String),
            pl.Series("source_row", rows.source_row[chosen], dtype=pl.Int64),
            pl.Series("value", values[chosen]),
            pl.Series("margin", judged.margin[chosen]).fill_nan(None),
        ]
    )


def recorded_side(path: Path, nearest: int = NEAREST_COUNT) -> Side:
    """A policy as its ledger has it. Raises LedgerError for a file that is none."""
    policy, _, _, counts = ledger_facts(path)
    passing = counts[-1][2]
    scan = scan_parquet(path, row_index_name="position").filter(
        pl.col("verdict").cast(pl.String) == STATES[DROPPED],
        pl.col("rank").is_between(passing + 1, passing + nearest),
        reason_kind(pl.col("reason")) == f"below_cut:{policy.rank_by}",  # else a prefilter's: its ranks are others
    )
    rows_near = scan.select(
        pl.col("position").cast(pl.Int64), "uid_high", "uid_low", pl.col("shard").cast(pl.String), "source_row", "rank",
        pl.col(signal_column(policy.rank_by)).alias("value"), "margin",
    ).collect(engine="streaming").sort("rank", "position")  # fmt: skip
    ids = uid_texts(rows_near["uid_high"], rows_near["uid_low"])
    chosen = rows_near.select("position", ids, "shard", "source_row", "value", "margin")

    def verdict_in(part: slice) -> np.ndarray:
        verdict = read_ledger(path, ["verdict"], part).frame["verdict"].cast(pl.String)
        return verdict.cast(pl.Enum(STATES)).to_physical().cast(pl.Int8).to_numpy()

    return Side(policy, parquet_rows(path), verdict_in, counts[0][0], chosen, RECORDED)


def _check_same_rows(left: Path, right: Path) -> None:
    """Raise LedgerError unless two ledgers have the same rows in the same order."""
    if ledger_rows_sha256(left) != ledger_rows_sha256(right):
        raise LedgerError(f"{left} and {right} record different rows; run the pool again so that both are of one pool")


def _nearest(store: ShardStore, side: Side, other: Side) -> pl.DataFrame:
    """The nearest dropped samples of a side, with their texts and the other policy's verdict on each."""
    texts = []
    for shard, source_row in side.nearest.select("shard", "source_row").iter_rows():
        sample = store.read(SAMPLES, shard, ["source_row", "caption", "url"])
        texts.append(sample.filter(pl.col("source_row") == source_row).select("caption", "url").head(1))
    text = pl.concat(texts) if texts else pl.DataFrame(schema={"caption": pl.String, "url": pl.String})
    if text.height != side.nearest.height:
        raise LedgerError(
            f"raw/samples lacks samples that policy {side.policy.name!r} judged; `curate run` the pool again"
        )
    codes = [other.verdict_in(slice(at, at + 1)) for at in side.nearest["position"]]
    return side.nearest.select(
        pl.lit(side.policy.name).alias("policy"),
        "sample_id",
        text["caption"],
        text["url"],
        pl.lit(side.policy.rank_by).alias("decided_by"),
        "value",
        "margin",
        pl.Series("other_verdict", [STATES[int(code[0])] for code in codes], dtype=pl.String),
    )


def _difference(store: ShardStore, left: Side, right: Side) -> Difference:
    counts = _verdict_pairs(left, right)
    kept = counts[KEPT].sum(), counts[:, KEPT].sum(), counts[KEPT, KEPT]
    return Difference(
        left.policy,
        right.policy,
        Overlap(int(counts.sum()), *map(int, kept)),
        max(left.judged, right.judged),
        _transitions(counts),
        pl.concat([_nearest(store, left, right), _nearest(store, right, left)]),
    )


def _verdict_pairs(left: Side, right: Side) -> np.ndarray:
    """(3, 3) int64: how many rows have each verdict of the left and of the right, as codes of STATES."""
    counts = np.zeros(9, dtype=np.int64)
    for part in stretches(left.rows, PART_ROWS):
        verdicts = left.verdict_in(part), right.verdict_in(part)
        for some in stretches(len(verdicts[0])):
            counts += np.bincount(verdicts[0][some] * np.int8(3) + verdicts[1][some], minlength=9)
    return counts.reshape(3, 3)


def _transitions(counts: np.ndarray) -> pl.DataFrame:
    """`_verdict_pairs` as a table, without those that are not there."""
    return pl.DataFrame(
        [
            {"left_verdict": STATES[i], "right_verdict": STATES[j], "rows": int(counts[i, j])}
            for i in range(3)
            for j in range(3)
            if counts[i, j]
        ],
        schema={"left_verdict": pl.String, "right_verdict": pl.String, "rows": pl.Int64},
    )


# -- what if ----------------------------------------------------------------------------------------------------------


def what_if(
    policy: Policy,
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    rank_by: str | None = None,
    prefilters: Sequence[Prefilter] | None = None,
) -> Policy:
    """The same policy with another fraction or threshold, ranking signal or prefilters (an empty list: none).

    Raises ValueError for fraction and threshold together, or a value out of range.
    """
    if fraction is not None and threshold is not None:
        raise ValueError(f"give --fraction or --threshold, not both; got {fraction} and {threshold}")
    changed = policy
    if rank_by is not None and rank_by != policy.rank_by:
        changed = replace(changed, rank_by=rank_by, name=f"{changed.name}_by_{rank_by.replace('.', '_')}")
    if prefilters is not None and tuple(prefilters) != policy.prefilters:
        filtered = (
            "_".join(f"{prefilter.rank_by.replace('.', '_')}_{prefilter.fraction:g}" for prefilter in prefilters)
            or "none"
        )
        name = f"{changed.name}_after_{filtered}".replace(".", "_")
        changed = replace(changed, prefilters=tuple(prefilters), name=name)
    if fraction is not None:
        return replace(changed.with_fraction(fraction), name=f"{changed.name}_{fraction:g}".replace(".", "_"))
    if threshold is not None:
        name = f"{changed.name}_from_{threshold:g}".replace(".", "_").replace("-", "minus_")
        return replace(changed, name=name, fraction=None, count=None, threshold=threshold, semantics="exact")
    return changed


def save_policy(folder: Path, policy: Policy, name: str, description: str = "") -> Path:
    """Write `policy` as `folder`/`name`.yaml, where the pool finds it. Raises ValueError for a name that is taken."""
    if not POOL_NAME.fullmatch(name):  # a table is named by it, as pools are
        raise ValueError(f"a policy's name has lower-case letters, digits and underscores, got {name!r}")
    path = folder / f"{name}.yaml"
    saved = replace(policy, name=name, description=description or policy.description)
    if name in shipped_policies() or (path.is_file() and load_policy(path) != saved):
        raise ValueError(f"there is a policy {name!r} already; choose another name")
    write_text_atomically(path, yaml.safe_dump(policy_content(saved), sort_keys=False, allow_unicode=True))
    return path


def find_policy(known: Mapping[str, Policy], name: str) -> Policy:
    """A policy by name. Raises ValueError that lists the names there are."""
    if name not in known:
        raise ValueError(f"no policy {name!r}; known: {', '.join(sorted(known))}")
    return known[name]
