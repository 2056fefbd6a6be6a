"""Policies: which samples become the subset. One small YAML file each; a verdict and a reason for every input row."""

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import yaml

from curation_assets.numeric.selection import (
    Selection,
    check_fraction,
    random_ranking,
    select_compat,
    select_threshold,
    select_top_count,
    share_count,
)
from curation_assets.stages import check_reads_forward

POLICIES_ROOT = Path(__file__).parent
RANDOM = "random"
CODE_VERSION = "1"  # bump when the same policy file would give other verdicts

#: Columns that tell two rows of one sample_id apart, where both tables have them.
ROW_KEY = ("shard", "source_row")

Semantics = Literal["exact", "compat"]


@dataclass(frozen=True)
class Prefilter:
    """A first cut: only the best `fraction` of the pool by `rank_by`, or values from `threshold` on, go further.

    A filter that says 1 or 0 is a threshold of 1. Subsets are intersected (DataComp, SIEVE §4.3) by prefilters with
    thresholds, or a fraction first and thresholds after it. Raises ValueError unless exactly one of both is given.
    """

    rank_by: str
    fraction: float | None = None  # of the kept samples of the pool, (0, 1]
    threshold: float | None = None  # in the unit of rank_by; keeps values ≥ it

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.threshold is None):
            raise ValueError(
                f"prefilter {self.rank_by} needs fraction or threshold, one of them; got {self.fraction}, "
                f"{self.threshold}"
            )


@dataclass(frozen=True)
class Step:
    """One cut of a policy in the order in which they are made: exactly one of the three says how much passes."""

    rank_by: str
    fraction: float | None
    threshold: float | None
    count: int | None = None


@dataclass(frozen=True)
class Policy:
    """How a subset is chosen. Higher values are better; ties go by sample_id, lowest first.

    `fraction` is of the samples that raw kept, whatever the prefilters leave, so policies of one fraction keep equally
    many. semantics 'exact' keeps round-half-up(n · fraction); 'compat' is DataComp's rule (n · fraction + 1, plus
    ties; METHODS §2.4). Raises ValueError unless exactly one of `fraction`, `threshold` and `count` is given.
    """

    name: str
    rank_by: str  # "stage.table" whose value (or quality) ranks, or "random"
    fraction: float | None = None
    threshold: float | None = None  # in the unit of rank_by; keeps values ≥ it
    count: int | None = None  # so many samples, such as Rao et al.'s amalgams of 2,015,000
    prefilters: tuple[Prefilter, ...] = ()
    seed: int = 0  # for rank_by random
    semantics: Semantics = "exact"
    description: str = ""

    def __post_init__(self) -> None:
        where = f"policy {self.name!r}"
        given = [one for one in (self.fraction, self.threshold, self.count) if one is not None]
        if len(given) != 1:
            raise ValueError(f"{where} needs fraction, threshold or count, one of them; got {given or 'none'}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"{where}: count must be at least 1, got {self.count}")
        if self.semantics not in ("exact", "compat"):
            raise ValueError(f"{where}: semantics must be 'exact' or 'compat', got {self.semantics!r}")
        if self.semantics == "compat" and (self.prefilters or self.fraction is None or self.fraction >= 1):
            raise ValueError(f"{where}: compat takes a fraction below 1 and no prefilters, as the reference does")
        for share in (self.fraction, *(prefilter.fraction for prefilter in self.prefilters)):
            if share is not None:
                check_fraction(share)
        for prefilter in self.prefilters:
            if self.fraction is not None and prefilter.fraction is not None and prefilter.fraction < self.fraction:
                raise ValueError(
                    f"{where}: prefilter {prefilter.rank_by} keeps {prefilter.fraction} of the pool, less than the "
                    f"final {self.fraction}; both are fractions of the whole pool"
                )
        for reference in self.references:
            if reference.count(".") != 1:
                raise ValueError(f"{where}: rank_by must read stage.table or {RANDOM}, got {reference!r}")
            check_reads_forward(f"filtered/{self.name}", reference.replace(".", "/"))

    @property
    def references(self) -> tuple[str, ...]:
        """Tables that the policy reads, 'stage.table', sorted; none for a random policy."""
        return tuple(sorted({self.rank_by, *(prefilter.rank_by for prefilter in self.prefilters)} - {RANDOM}))

    @property
    def version(self) -> str:
        """Changes whenever the verdicts may: sha256 of everything but the description."""
        content = {**asdict(self), "description": None, "code_version": CODE_VERSION}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The prefilters in order, then the cut itself."""
        first = (Step(one.rank_by, one.fraction, one.threshold) for one in self.prefilters)
        return (*first, Step(self.rank_by, self.fraction, self.threshold, self.count))

    def with_fraction(self, fraction: float) -> "Policy":
        """The same policy with another fraction (in place of its threshold); wider prefilters stay as they are.

        A prefilter that would keep less than `fraction` keeps just as much, and so decides nothing.
        """
        prefilters = tuple(
            one if one.fraction is None else replace(one, fraction=max(one.fraction, fraction))
            for one in self.prefilters
        )
        return replace(self, fraction=fraction, threshold=None, count=None, prefilters=prefilters)


@dataclass(frozen=True)
class Cut:
    """One cut of a policy, frozen: enough to judge a sample that was not there when it was made.

    A sample passes when its value is above `threshold`, or equal to it with a sample_id up to `boundary_id`.
    """

    rank_by: str
    candidates: int  # samples that reached this cut
    valued: int  # of those, samples with a value
    kept: int
    threshold: float  # smallest value that passes; +inf when none does
    boundary_id: str | None  # None: every value equal to the threshold passes

    def passes(self, values: np.ndarray, sample_ids: np.ndarray) -> np.ndarray:
        """(N,) values and ids → (N,) bool. NaN never passes."""
        passing = values >= self.threshold
        if self.boundary_id is not None:
            tied = np.flatnonzero(values == self.threshold)
            passing[tied] = sample_ids[tied] <= self.boundary_id
        return passing


@dataclass(frozen=True)
class PolicyCut:
    """All cuts of a policy on one pool: its prefilters in order, then the final one."""

    policy: str
    policy_version: str
    pool_size: int  # samples that raw kept
    pool_fingerprint: str  # sha256 of those samples' ids and values: which pool the cut was made on
    cuts: tuple[Cut, ...]

    @property
    def k(self) -> int:
        """Samples that the final cut keeps."""
        return self.cuts[-1].kept

    @property
    def threshold(self) -> float:
        """Smallest kept value of the final ranking."""
        return self.cuts[-1].threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON (an infinite threshold as null)."""
        content = asdict(self)
        for cut in content["cuts"]:
            cut["threshold"] = cut["threshold"] if np.isfinite(cut["threshold"]) else None
        return {**content, "cuts": list(content["cuts"])}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PolicyCut":
        """Inverse of `to_dict`."""
        cuts = (
            Cut(**{**cut, "threshold": np.inf if cut["threshold"] is None else cut["threshold"]})
            for cut in content["cuts"]
        )
        return cls(**{**content, "cuts": tuple(cuts)})


@dataclass(frozen=True)
class PolicyResult:
    """A policy applied to a pool. Rows of `verdicts` with verdict kept are exactly the subset."""

    policy: Policy
    verdicts: pl.DataFrame  # one row per input row, in input order; columns of VERDICT_SCHEMA
    cut: PolicyCut


VERDICT_SCHEMA: dict[str, Any] = {
    "sample_id": pl.String,
    "shard": pl.String,
    "decided_by": pl.String,  # rank_by of the cut that decided; null for rows that raw did not keep
    "value": pl.Float64,  # in the unit of decided_by
    "rank": pl.Int64,  # 1 is best, among the samples that reached that cut
    "threshold": pl.Float64,  # of that cut
    "margin": pl.Float64,  # value − threshold
    "verdict": pl.String,  # kept, dropped, failed
    "reason": pl.String,  # null exactly when kept
}


def load_policies(root: Path = POLICIES_ROOT) -> dict[str, Policy]:
    """Every policy file of a folder by name, sorted."""
    return {policy.name: policy for policy in map(load_policy, sorted(Path(root).glob("*.yaml")))}


def load_policy(path: Path) -> Policy:
    """A policy from its YAML file. The file is named like the policy. Raises ValueError for unknown or missing keys."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    known = set(Policy.__dataclass_fields__)
    unknown = sorted(set(content) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise ValueError(f"{path}: unknown keys {unknown}{f'; did you mean {near[0]!r}?' if near else ''}")
    if content.get("name") != path.stem or "rank_by" not in content:
        raise ValueError(f"{path}: expected name: {path.stem} and rank_by, got {content}")
    prefilters = tuple(Prefilter(**prefilter) for prefilter in content.pop("prefilters", None) or ())
    return Policy(prefilters=prefilters, **content)


def policy_content(policy: Policy) -> dict[str, Any]:
    """What the policy's YAML file says: only what differs from the defaults. The inverse of `load_policy`."""
    content: dict[str, Any] = {}
    for one in fields(Policy):
        value = getattr(policy, one.name)
        if one.name in ("name", "rank_by") or value != one.default:
            content[one.name] = (
                [_without_nones(prefilter) for prefilter in value] if one.name == "prefilters" else value
            )
    return content


def _without_nones(prefilter: Prefilter) -> dict[str, Any]:
    return {name: value for name, value in asdict(prefilter).items() if value is not None}


def apply_policy(policy: Policy, samples: pl.DataFrame, values: Mapping[str, pl.DataFrame]) -> PolicyResult:
    """Cut the pool and judge every row of it. The order of rows is irrelevant to the verdicts.

    `samples`: sample_id, shard, status, reason (raw.samples), optionally source_row, which is carried through.
    `values`: per reference of the policy a table with sample_id and value (or quality) and reason.
    Verdicts: kept; dropped (`prefilter:<rank_by>` or `below_cut:<rank_by>`); failed (raw's status and reason, or
    `no_value:<reason>`). Raises ValueError for missing tables or columns, or where two kept rows share a sample_id.
    """
    pool = _Pool.read(policy, samples, values)
    cut = _fit_cut(policy, pool)
    return PolicyResult(policy, _judge(policy, pool, cut, with_ranks=True), cut)


def apply_cut(
    policy: Policy, cut: PolicyCut, samples: pl.DataFrame, values: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Verdicts of rows by a frozen cut: of one shard, or of a shard that came later.

    Ranks are null: they need the whole pool. On the pool that the cut was made on, the verdicts are those of
    `apply_policy`. Raises ValueError where the cut belongs to another policy or another version of it.
    """
    check_cut(policy, cut)
    return _judge(policy, _Pool.read(policy, samples, values), cut, with_ranks=False)


def check_cut(policy: Policy, cut: PolicyCut) -> None:
    """Raise ValueError where the cut belongs to another policy or another version of it."""
    if (cut.policy, cut.policy_version) != (policy.name, policy.version):
        raise ValueError(
            f"the cut was made by policy {cut.policy!r} version {cut.policy_version[:12]}, not by {policy.name!r} "
            f"version {policy.version[:12]}; apply the policy anew"
        )


#: Grain: one row per step of a policy, prefilters first.
CUT_SCHEMA: dict[str, Any] = {
    "policy": pl.String,
    "policy_version": pl.String,
    "pool_size": pl.Int64,
    "pool_fingerprint": pl.String,
    "step": pl.Int64,
    "rank_by": pl.String,
    "candidates": pl.Int64,
    "valued": pl.Int64,
    "kept": pl.Int64,
    "threshold": pl.Float64,  # null: nothing passes
    "boundary_id": pl.String,
}


def cut_frame(cut: PolicyCut) -> pl.DataFrame:
    """A cut as a table (CUT_SCHEMA)."""
    content = cut.to_dict()
    of_pool = {name: value for name, value in content.items() if name != "cuts"}
    rows = [{**of_pool, "step": step, **one} for step, one in enumerate(content["cuts"])]
    return pl.DataFrame(rows, schema=CUT_SCHEMA)


def cut_of_frame(frame: pl.DataFrame) -> PolicyCut:
    """Inverse of `cut_frame`."""
    rows = frame.sort("step").to_dicts()
    of_cut = [field.name for field in fields(Cut)]
    of_pool = {name: rows[0][name] for name in ("policy", "policy_version", "pool_size", "pool_fingerprint")}
    return PolicyCut.from_dict({**of_pool, "cuts": [{name: row[name] for name in of_cut} for row in rows]})


@dataclass(frozen=True)
class _Pool:
    """Rows as read, and the kept ones as arrays."""

    rows: pl.DataFrame  # sample_id, shard, status, reason and row columns, in input order
    kept_rows: np.ndarray  # (M,) positions of the rows that raw kept
    ids: np.ndarray  # (M,) str
    values: dict[str, np.ndarray]  # rank_by → (M,) float64, NaN without a value
    reasons: dict[str, list[str | None]]  # rank_by → (M,) why there is no value

    @classmethod
    def read(cls, policy: Policy, samples: pl.DataFrame, values: Mapping[str, pl.DataFrame]) -> "_Pool":
        absent = {"sample_id", "shard", "status", "reason"} - set(samples.columns)
        if absent:
            raise ValueError(f"samples lack the columns {sorted(absent)}; got {samples.columns}")
        odd = set(samples["status"].unique().to_list()) - {"kept", "dropped", "failed"}
        if odd:
            raise ValueError(f"status must be kept, dropped or failed in every row, got {sorted(map(str, odd))}")
        missing = [reference for reference in policy.references if reference not in values]
        if missing:
            raise ValueError(f"policy {policy.name!r} reads {missing}; got values of {sorted(values)}")
        rows = samples.select(
            "sample_id", "shard", *(c for c in ROW_KEY[1:] if c in samples.columns), "status", "reason"
        )
        is_kept = (rows["status"] == "kept").to_numpy()
        kept = rows.filter(pl.Series(is_kept))
        if kept["sample_id"].n_unique() != kept.height:
            twice = kept.filter(pl.col("sample_id").is_duplicated())["sample_id"][0]
            raise ValueError(f"two kept rows share the sample_id {twice}; raw must drop duplicates (reason and all)")
        numbers: dict[str, np.ndarray] = {}
        reasons: dict[str, list[str | None]] = {}
        for rank_by in {policy.rank_by, *(prefilter.rank_by for prefilter in policy.prefilters)}:
            if rank_by == RANDOM:
                numbers[rank_by] = random_ranking(kept["sample_id"].to_list(), policy.seed)
                reasons[rank_by] = [None] * kept.height
            else:
                numbers[rank_by], reasons[rank_by] = _values_of(kept, rank_by, values[rank_by])
        return cls(rows, np.flatnonzero(is_kept), kept["sample_id"].to_numpy().astype(str), numbers, reasons)


def _values_of(kept: pl.DataFrame, rank_by: str, table: pl.DataFrame) -> tuple[np.ndarray, list[str | None]]:
    """Values (M,) of the kept rows, NaN where there is none, and the reasons."""
    column = "quality" if "quality" in table.columns else "value"
    absent = {"sample_id", column, "reason"} - set(table.columns)
    if absent:
        raise ValueError(f"table {rank_by} lacks the columns {sorted(absent)}; got {table.columns}")
    key = list(ROW_KEY) if set(ROW_KEY) <= set(table.columns) & set(kept.columns) else ["sample_id"]
    found = table.select(
        *key, pl.col(column).cast(pl.Float64).fill_nan(None).alias("value"), pl.col("reason").alias("why")
    )
    if key == ["sample_id"]:
        # A dropped duplicate shares the id of the row that was kept: the row with a value, or else with its own
        # reason, speaks for the sample.
        is_upstream = pl.col("why").str.starts_with("upstream_").fill_null(False)
        found = found.sort(pl.col("value").is_null(), is_upstream, maintain_order=True)
        found = found.unique(key, keep="first", maintain_order=True)
    joined = kept.select(key).join(found.with_columns(is_there=True), on=key, how="left", maintain_order="left")
    if joined.height != kept.height:
        raise ValueError(f"table {rank_by} has several rows for one row of raw/samples; materialise it again")
    reason = (
        pl.when(pl.col("value").is_not_null())
        .then(None)
        .when(pl.col("is_there"))
        .then(pl.col("why").fill_null("no_reason"))
        .otherwise(pl.lit("no_row"))
    )
    return (
        joined["value"].fill_null(float("nan")).to_numpy().astype(np.float64),
        joined.select(reason.alias("reason"))["reason"].cast(pl.String).to_list(),
    )


def _fit_cut(policy: Policy, pool: _Pool) -> PolicyCut:
    n = len(pool.ids)
    at_stake = np.arange(n)  # positions that reached the cut
    cuts = []
    for step in policy.steps:
        values, ids = pool.values[step.rank_by][at_stake], pool.ids[at_stake].tolist()
        selection = _select(policy, values, ids, n, step)
        valued = int((~np.isnan(values)).sum())
        cuts.append(
            Cut(step.rank_by, len(ids), valued, selection.kept_count, selection.threshold, selection.boundary_id)
        )
        at_stake = at_stake[selection.is_kept]
    return PolicyCut(policy.name, policy.version, n, _fingerprint(pool), tuple(cuts))


def _select(policy: Policy, values: np.ndarray, ids: list[str], pool_size: int, step: Step) -> Selection:
    if step.threshold is not None:
        return select_threshold(values, ids, step.threshold)
    if policy.semantics == "compat":
        assert step.fraction is not None, policy
        return select_compat(values, ids, step.fraction)
    return select_top_count(values, ids, kept_count(step, pool_size))


def kept_count(step: Step, pool_size: int) -> int:
    """How many samples a step by fraction or count keeps of a pool, if so many have a value."""
    if step.count is not None:
        return step.count
    assert step.fraction is not None, step
    return share_count(pool_size, step.fraction)


def _fingerprint(pool: _Pool) -> str:
    """sha256 over the sorted ids and, in that order, the values of each ranking."""
    order = np.argsort(pool.ids)
    digest = hashlib.sha256("\n".join(pool.ids[order].tolist()).encode())
    for rank_by in sorted(pool.values):
        values = pool.values[rank_by][order]
        canonical = np.where(np.isnan(values), np.nan, values + 0.0)  # one bit pattern for NaN, and +0 for −0
        digest.update(f"\0{rank_by}\0".encode() + canonical.astype("<f8").tobytes())
    return digest.hexdigest()


def _judge(policy: Policy, pool: _Pool, cut: PolicyCut, *, with_ranks: bool) -> pl.DataFrame:
    """One verdict per row, in input order, from the cuts alone."""
    m = len(pool.ids)
    decided_by = np.full(m, "", dtype=object)
    value, threshold = np.full(m, np.nan), np.full(m, np.nan)
    rank = np.zeros(m, dtype=np.int64)
    verdict, reason = np.full(m, "kept", dtype=object), np.full(m, None, dtype=object)
    at_stake = np.arange(m)
    for step, one in enumerate(cut.cuts):
        values, ids = pool.values[one.rank_by][at_stake], pool.ids[at_stake]
        passes = one.passes(values, ids)
        decided_by[at_stake], value[at_stake], threshold[at_stake] = one.rank_by, values, one.threshold
        if with_ranks:
            rank[at_stake] = select_top_count(values, ids.tolist(), 0).rank
        has_value = ~np.isnan(values)
        is_last = step == len(cut.cuts) - 1
        dropped = at_stake[has_value & ~passes]
        verdict[dropped] = "dropped"
        reason[dropped] = f"below_cut:{one.rank_by}" if is_last else f"prefilter:{one.rank_by}"
        for i in at_stake[~has_value]:
            verdict[i], reason[i] = "failed", f"no_value:{pool.reasons[one.rank_by][i]}"
        at_stake = at_stake[passes]
    finite_threshold = np.where(np.isfinite(threshold), threshold, np.nan)
    judged = pl.DataFrame(
        {
            "row": pool.kept_rows,
            "decided_by": decided_by.tolist(),
            "value": value,
            "rank": rank,
            "threshold": finite_threshold,
            "margin": value - finite_threshold,
            "verdict": verdict.tolist(),
            "judged_reason": reason.tolist(),
        },
        schema_overrides={
            "row": pl.UInt32,
            "decided_by": pl.String,
            "verdict": pl.String,
            "judged_reason": pl.String,
        },
    ).with_columns(
        pl.col("value", "threshold", "margin").fill_nan(None),
        pl.when(pl.col("rank") > 0).then(pl.col("rank")).alias("rank"),
    )
    rows = pool.rows.with_row_index("row").join(judged, on="row", how="left", maintain_order="left")
    is_kept = pl.col("status") == "kept"
    # What raw dropped stays dropped, and what failed there stays failed, each with raw's own reason.
    return rows.with_columns(
        pl.when(is_kept).then(pl.col("verdict")).otherwise(pl.col("status")).alias("verdict"),
        pl.when(is_kept)
        .then(pl.col("judged_reason"))
        .otherwise(pl.col("reason").fill_null("no_reason"))
        .alias("reason"),
    ).select("sample_id", "shard", *(c for c in ROW_KEY[1:] if c in rows.columns), *list(VERDICT_SCHEMA)[2:])
