"""A policy's subset against somebody else's, such as a published list of ids: who keeps what, and why not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.audit.diff import FITTED, FROZEN, RECORDED, Overlap
from curation_assets.audit.recorded import current_ledgers, cuts_in_force
from curation_assets.selection.judging import judge, reason_kind
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import STATES, PoolRows, enum_series, uid_columns
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import read_subset

_UID = ["uid_high", "uid_low"]


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


def compare_with_file(store: ShardStore, policy: Policy, path: Path) -> AgainstFile:
    """A policy as its ledger has it, if that is current, else judged now; and the ids of a file (`stores/subsets.py`).

    Of a sample in several rows the one that is kept counts. Raises ValueError for another kind of file, and what
    reading a signal raises.
    """
    ids = sorted(set(read_subset(path)))
    listed = pl.DataFrame({"sample_id": ids}, schema={"sample_id": pl.String}).select(*uid_columns())
    states, origin = _states(store, policy)
    judged = states.filter(pl.col("is_judged")).height
    here = states.join(listed.with_columns(is_listed=pl.lit(True)), on=_UID, how="left").with_columns(
        pl.col("is_listed").fill_null(False)
    )
    kept, in_file = (here["verdict"] == "kept").to_numpy(), here["is_listed"].to_numpy()
    missed = here.filter(pl.col("is_listed") & (pl.col("verdict") != "kept"))
    reasons = missed.group_by("verdict", reason_kind(pl.col("reason")).alias("reason")).len("samples")
    return AgainstFile(
        policy.name,
        str(path),
        origin,
        Overlap.of(kept, in_file),
        judged,
        len(ids),
        len(ids) - int(in_file.sum()),
        reasons.sort("samples", "verdict", "reason", descending=[True, False, False]),
    )


def _states(store: ShardStore, policy: Policy) -> tuple[pl.DataFrame, str]:
    """One row per sample: uid_high, uid_low, verdict, reason, is_judged; and where they come from."""
    ledger = current_ledgers(store, [policy]).get(policy.name)
    if ledger is not None:
        frame = read_parquet(ledger, columns=[*_UID, "verdict", "reason", "decided_by"])
        frame = frame.with_columns(is_judged=pl.col("decided_by").is_not_null()).drop("decided_by")
        origin = RECORDED
    else:
        rows, cut = PoolRows.read(store), cuts_in_force(store, [policy]).get(policy.name)
        judged = judge(policy, rows, cut)
        frame = pl.DataFrame(
            [
                pl.Series("uid_high", rows.uid_high),
                pl.Series("uid_low", rows.uid_low),
                enum_series("verdict", judged.verdict.astype("int32"), STATES),
                judged.reason.series("reason"),
                pl.Series("is_judged", judged.step >= 0),
            ]
        )
        origin = FITTED if cut is None else FROZEN
    frame = frame.with_columns(pl.col("verdict", "reason").cast(pl.String))
    first = frame.sort(pl.col("verdict") != "kept", ~pl.col("is_judged"), maintain_order=True)
    return first.unique(_UID, keep="first", maintain_order=True), origin
