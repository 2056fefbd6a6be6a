"""Verdicts: the terminal state of every row under a policy, as a table."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.numeric.selection import (
    Selection,
    random_ranking,
    select_compat,
    select_threshold,
    select_top_count,
)
from curation_assets.selection.cut import Cut, PolicyCut, check_cut, kept_count
from curation_assets.selection.policy import RANDOM, Policy, Step

#: Columns that tell two rows of one sample_id apart, where both tables have them.
ROW_KEY = ("shard", "source_row")


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
