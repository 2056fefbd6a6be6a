"""The difference between two policies on one pool: overlap, shifts, what each signal decides, nearest misses."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from curation_assets.audit.ledger import Ledger, LedgerError
from curation_assets.audit.recorded import current_ledgers, cuts_in_force
from curation_assets.audit.shifts import Progress, marks_of, shifts
from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.settings import POOL_NAME
from curation_assets.core.table_names import SAMPLES
from curation_assets.methods import lower_is_better
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import fit_cut, judge, judge_pool, was_dropped_by
from curation_assets.selection.leave_one_out import leave_one_out
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import (
    Policy,
    Prefilter,
    load_policy,
    policy_content,
    shipped_policies,
)
from curation_assets.selection.rows import IDENTITY, STATES, Pool, Rows, Wanted, read_rows
from curation_assets.stores.documents import save_text
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
        """The overlap over these rows and other ones together."""
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
    """One of the two policies, and its verdicts: (shards, columns) → those of their rows, in the order of
    raw/samples."""

    policy: Policy
    read: Callable[[Sequence[str], Sequence[str]], pl.DataFrame]
    origin: str = FITTED


@dataclass(frozen=True)
class Comparison:
    """Two policies on one pool, in steps: `verdicts` takes seconds where both are recorded, `whole` more."""

    store: ShardStore
    left: Side
    right: Side
    pool: Pool
    nearest: int = NEAREST_COUNT

    @functools.cached_property
    def verdicts(self) -> Difference:
        """Overlap, transitions and nearest dropped samples. Raises LedgerError for ledgers of different rows."""
        sides = (self.left, self.right)
        counts, judged = np.zeros((3, 3), dtype=np.int64), np.zeros(2, dtype=np.int64)
        near: list[pl.DataFrame | None] = [None, None]
        for group, both in self._parts(("decided_by", "value", "verdict", "reason")):
            left, right = ([one["verdict"] == state for state in STATES] for one in both)
            counts += [[int((mine & other).sum()) for other in right] for mine in left]
            judged += [int(one["decided_by"].is_not_null().sum()) for one in both]
            for at, side in enumerate(sides):
                near[at] = self._nearest(side, group, near[at], both[at], both[1 - at])
        kept = counts[0].sum(), counts[:, 0].sum(), counts[0, 0]
        return Difference(
            self.left.policy,
            self.right.policy,
            Overlap(int(counts.sum()), *map(int, kept)),
            int(judged.max()),
            _transitions(counts),
            pl.concat(self._with_texts(side, rows) for side, rows in zip(sides, near, strict=True) if rows is not None),
        )

    def whole(self, on_progress: Progress | None = None) -> WholeDifference:
        """With shifts and what each signal decides. `on_progress` gets how many shards are counted, of `shards`."""
        sides = (self.left, self.right)
        different = sides[: 1 if self.left.policy == self.right.policy else 2]
        return WholeDifference(
            **vars(self.verdicts),
            shifts=shifts(self.pool, self._marks(), on_progress),
            leave_one_out=pl.concat(leave_one_out(self.pool, side.policy, self._kept(side)) for side in different),
        )

    def _parts(self, columns: Sequence[str]) -> Iterator[tuple[list[str], tuple[pl.DataFrame, pl.DataFrame]]]:
        """Verdicts of both, of some shards after the others."""
        for group in self.pool.groups():
            both = self._made_from(self.left, group), self._made_from(self.right, group)
            if None not in (*both[0], *both[1]) and both[0] == both[1]:
                yield group, (self.left.read(group, columns), self.right.read(group, columns))
                continue
            left, right = (side.read(group, (*IDENTITY, *columns)) for side in (self.left, self.right))
            if not left.select(IDENTITY).equals(right.select(IDENTITY)):
                raise LedgerError(
                    f"{self.left.policy.name} and {self.right.policy.name} record different rows; run the pool again "
                    "so that both are of one pool"
                )
            yield group, (left.select(columns), right.select(columns))

    def _made_from(self, side: Side, shards: Sequence[str]) -> list[str | None]:
        """Content of raw/samples that the verdicts of each shard were made from; None for verdicts judged now."""
        table = f"filtered/{side.policy.name}"
        manifests = [self.store.manifest(table, shard) if side.origin == RECORDED else None for shard in shards]
        pairs = zip(shards, manifests, strict=True)
        return [None if one is None else one.contents_read.get((SAMPLES, shard)) for shard, one in pairs]

    def _nearest(
        self, side: Side, group: Sequence[str], known: pl.DataFrame | None, mine: pl.DataFrame, other: pl.DataFrame
    ) -> pl.DataFrame:
        """The rows that a side's last cut dropped by the smallest margin, of those known and of some shards, whose
        further columns are read where they hold one that is as near."""
        is_lower_better = lower_is_better(side.policy.rank_by)
        is_near = was_dropped_by(side.policy.rank_by)
        if known is not None and known.height == self.nearest:
            worst = known["value"][-1]
            is_near &= pl.col("value") <= worst if is_lower_better else pl.col("value") >= worst
        chosen = mine.select(is_near.fill_null(False)).to_series()
        if known is not None and not chosen.any():
            return known
        rows = side.read(group, _COLUMNS).with_columns(other["verdict"].alias("other_verdict")).filter(chosen)
        both = rows if known is None else pl.concat([known, rows])
        return both.sort("value", "sample_id", descending=[not is_lower_better, False]).head(self.nearest)

    def _marks(self) -> Iterator[pl.DataFrame]:
        """Part after part, who kept each row."""
        for rows, (_, both) in zip(self.pool.parts(), self._parts(("verdict",)), strict=True):
            kept = [(one["verdict"] == "kept").to_numpy() for one in both]
            yield marks_of((rows["status"] == "kept").to_numpy(), *kept)

    def _kept(self, side: Side) -> Callable[[], Iterator[pl.Series]]:
        return lambda: (side.read(group, ("verdict",))["verdict"] == "kept" for group in self.pool.groups())

    def _with_texts(self, side: Side, rows: pl.DataFrame) -> pl.DataFrame:
        """The nearest dropped samples of a side, with their texts."""
        texts = []
        for shard, source_row in rows.select("shard", "source_row").iter_rows():
            sample = self.store.read(SAMPLES, shard, ["source_row", "caption", "url"])
            texts.append(sample.filter(pl.col("source_row") == source_row).select("caption", "url").head(1))
        text = pl.concat(texts) if texts else pl.DataFrame(schema={"caption": pl.String, "url": pl.String})
        if text.height != rows.height:
            raise LedgerError(
                f"raw/samples lacks samples that policy {side.policy.name!r} judged; `curate run` the pool again"
            )
        return rows.select(
            pl.lit(side.policy.name).alias("policy"),
            "sample_id",
            text["caption"],
            text["url"],
            pl.lit(side.policy.rank_by).alias("decided_by"),
            "value",
            "margin",
            "other_verdict",
        )

    @property
    def shards(self) -> int:
        """Shards of the pool."""
        return len(self.store.partitions(SAMPLES))


def policy_comparison(
    store: ShardStore, left: Policy, right: Policy, progress: ProgressReporter | None = None
) -> Comparison:
    """Two policies of a pool: as their ledgers have them where those are current, else judged by their frozen cuts,
    else by cuts fitted now.

    Raises ValueError where both are the same policy, and what reading a signal raises.
    """
    if left == right:
        raise ValueError(
            f"{left.name} and {right.name} are the same policy; name another, or change its fraction, threshold, "
            "ranking signal or prefilters"
        )
    pool, both = Pool(store, progress or Silent()), [left, right]
    ledgers, cuts = current_ledgers(store, both), cuts_in_force(store, both)
    sides = [
        recorded_side(store, ledgers[one.name]) if one.name in ledgers else judged_side(pool, one, cuts.get(one.name))
        for one in both
    ]
    return Comparison(store, sides[0], sides[1], pool)


def compare(pool: Pool, left: Policy, right: Policy, *, nearest: int = NEAREST_COUNT) -> WholeDifference:
    """Judge a pool by both policies, fitted on it, and compare their verdicts. Raises what reading a signal raises."""
    return Comparison(pool.store, judged_side(pool, left), judged_side(pool, right), pool, nearest).whole()


def recorded_difference(left: Ledger, right: Ledger, store: ShardStore, *, nearest: int = NEAREST_COUNT) -> Difference:
    """Two policies as their ledgers have them, whatever the pool is now. Raises LedgerError for other rows."""
    shards = [tuple(store.partitions(f"filtered/{one.policy.name}")) for one in (left, right)]
    if shards[0] != shards[1]:
        raise LedgerError(f"{left.policy.name} and {right.policy.name} record different rows; run the pool again")
    pool = Pool(store, shards=shards[0])
    return Comparison(store, recorded_side(store, left), recorded_side(store, right), pool, nearest).verdicts


def iou_at(pool: Rows, left: Policy, right: Policy, fractions: Sequence[float]) -> pl.DataFrame:
    """IoU of two rankings at each fraction: fraction, left, right, both, iou, chance_iou. SIEVE §4.2; formulas.md §2.5.

    chance_iou: k / (2 − k) for two independent draws of a share k of the samples that raw kept.
    """
    records = []
    judged = sum(int((rows["status"] == "kept").sum()) for rows in pool.parts())
    for fraction in fractions:
        sides = [judge_pool(policy.with_fraction(fraction), pool) for policy in (left, right)]
        parts = ([(one["verdict"] == "kept").to_numpy() for one in both] for both in zip(*sides, strict=True))
        overlap = sum((Overlap.of(*both) for both in parts), Overlap(0, 0, 0, 0))
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

_COLUMNS = [*IDENTITY, "decided_by", "value", "margin", "verdict", "reason"]


def judged_side(pool: Pool, policy: Policy, cut: PolicyCut | None = None) -> Side:
    """Judge a pool by a policy: by a frozen `cut`, or by one fitted now."""
    wanted = Wanted.of(policy)
    fitted = fit_cut(policy, pool) if cut is None else cut

    def read(shards: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        return judge(policy, remaining(policy, read_rows(pool.store, shards, wanted)), fitted).select(columns)

    return Side(policy, read, FITTED if cut is None else FROZEN)


def recorded_side(store: ShardStore, ledger: Ledger) -> Side:
    """A policy as its ledger in the pool has it."""
    table = f"filtered/{ledger.policy.name}"

    def read(shards: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        return store.scan(table, list(shards)).select(columns).collect()

    return Side(ledger.policy, read, RECORDED)


def _transitions(counts: np.ndarray) -> pl.DataFrame:
    """(3, 3) rows that have each verdict of the left and of the right, as a table, without those that are not there."""
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
    save_text(path, yaml.safe_dump(policy_content(saved), sort_keys=False, allow_unicode=True))
    return path


def find_policy(known: Mapping[str, Policy], name: str) -> Policy:
    """A policy by name. Raises ValueError that lists the names there are."""
    if name not in known:
        raise ValueError(f"no policy {name!r}; known: {', '.join(sorted(known))}")
    return known[name]
