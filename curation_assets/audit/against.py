"""A policy's subset against somebody else's, such as a published list of ids: who keeps what, and why not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.diff import Overlap, judged_side, recorded_side
from curation_assets.audit.recorded import current_ledgers, cuts_in_force
from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.table_names import SAMPLES
from curation_assets.numeric.identity import as_pairs
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import Pool
from curation_assets.stores.columns import halves_of
from curation_assets.stores.pool_queries import open_whole_pool
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import distinct_ids


@dataclass(frozen=True)
class AgainstFile:
    """What a policy keeps and what a file lists, of one pool."""

    policy: str
    file: str
    origin: str  # where the policy's verdicts come from
    overlap: Overlap  # in samples of the pool; left: the policy, right: the file
    judged: int  # samples that reached the first cut
    listed: int  # different samples that the file lists
    not_in_pool: int  # of those
    reasons: (
        pl.DataFrame
    )  # verdict, reason, samples: of those listed that the policy does not keep, most frequent first

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        overlap = self.overlap
        return {
            "policy": self.policy,
            "file": self.file,
            "origin": self.origin,
            "judged": self.judged,
            "kept": {"policy": overlap.left, "file": overlap.right, "both": overlap.both},
            "only_policy": overlap.only_left,
            "only_file": overlap.only_right,
            "iou": overlap.iou,
            "chance_iou": overlap.chance_iou(self.judged),
            "listed": self.listed,
            "not_in_pool": self.not_in_pool,
            "reasons": self.reasons.to_dicts(),
        }


def compare_with_file(
    store: ShardStore, policy: Policy, path: Path, progress: ProgressReporter | None = None
) -> AgainstFile:
    """A policy as its ledger has it, if that is current, else judged now; and the ids of a file (`stores/subsets.py`).

    Of a sample in several rows the one that is kept counts. In memory are the ids of the file. Raises ValueError for
    another kind of file, and what reading a signal raises.
    """
    listed, pool = distinct_ids(path), Pool(store, progress or Silent())
    ledger, cut = current_ledgers(store, [policy]).get(policy.name), cuts_in_force(store, [policy]).get(policy.name)
    side = judged_side(pool, policy, cut) if ledger is None else recorded_side(store, ledger)
    several = _in_several_rows(store)
    counts, reasons, repeated = np.zeros(5, dtype=np.int64), list[pl.DataFrame](), list[pl.DataFrame]()
    for group in pool.groups():
        rows = side.read(group, ("sample_id", "decided_by", "verdict", "reason")).with_columns(
            is_judged=pl.col("decided_by").is_not_null()
        )
        is_repeated = rows["sample_id"].is_in(several)
        repeated.append(rows.filter(is_repeated))
        counts += _counted(rows.filter(~is_repeated), listed, reasons)
    first = pl.concat(repeated).sort(pl.col("verdict") != "kept", ~pl.col("is_judged"), maintain_order=True)
    counts += _counted(first.unique("sample_id", keep="first", maintain_order=True), listed, reasons)
    samples, judged, *kept = counts.tolist()
    overlap = Overlap(samples, *kept)
    shown = pl.concat(reasons).group_by("verdict", "reason").agg(pl.col("samples").sum())
    return AgainstFile(
        policy.name,
        str(path),
        side.origin,
        overlap,
        judged,
        len(listed),
        len(listed) - overlap.right,
        shown.sort("samples", "verdict", "reason", descending=[True, False, False]),
    )


def _in_several_rows(store: ShardStore) -> pl.Series:
    """sample_ids that raw/samples has in several rows, kept by raw or not."""
    with open_whole_pool(store, [SAMPLES]) as connection:
        query = "select sample_id from raw.samples group by sample_id having count(*) > 1"
        return connection.sql(query).pl()["sample_id"].implode()


def _counted(rows: pl.DataFrame, listed: np.ndarray, reasons: list[pl.DataFrame]) -> list[int]:
    """How many samples (a row each) there are, are judged, kept, listed, and both; `reasons` gets
    why listed ones are not kept."""
    mine, ids = as_pairs(*halves_of(rows["sample_id"]).T), np.append(listed, b"")  # where one comes after all of them
    is_kept, is_listed = rows["verdict"] == "kept", pl.Series(ids[np.searchsorted(listed, mine)] == mine)
    missed = rows.filter(is_listed & ~is_kept).group_by("verdict", reason_kind(pl.col("reason")).alias("reason"))
    reasons.append(missed.len("samples"))
    return [rows.height, *(int(one.sum()) for one in (rows["is_judged"], is_kept, is_listed, is_kept & is_listed))]
