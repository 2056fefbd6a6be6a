"""A policy's subset against somebody else's, such as a published list of ids: who keeps what, and why not."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.audit.diff import FITTED, FROZEN, RECORDED, Overlap
from curation_assets.audit.ledger import PART_ROWS, ledger_parts
from curation_assets.audit.recorded import current_ledgers, cuts_in_force
from curation_assets.core.progress import ProgressReporter
from curation_assets.numeric.sorting import stretches
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.part_by_part import judge_pool
from curation_assets.selection.policy import Policy
from curation_assets.selection.ranges import whole_pool
from curation_assets.selection.rows import STATES, UID, Texts
from curation_assets.stores.external_sort import key_ranges
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import listed_ids

_UID = list(UID)


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

    Both are read side by side, as they are sorted. Of a sample in several rows the one that is kept counts. Raises
    ValueError for another kind of file, and what reading a signal raises.
    """
    overlap, judged, listed = Overlap(0, 0, 0, 0), 0, 0
    reasons = pl.DataFrame(schema={"verdict": pl.String, "reason": pl.String, "samples": pl.UInt32})
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ids-", ignore_cleanup_errors=True))
        ids = listed_ids(path, Path(folder))
        states, origin = _states(store, policy, stack, progress)
        for rows, listed_here in key_ranges([states, ids], _UID):
            first = rows.sort(pl.col("verdict") != "kept", ~pl.col("is_judged"), maintain_order=True)
            samples = first.unique(_UID, keep="first", maintain_order=True)
            in_list = listed_here.unique()
            here = samples.join(in_list.with_columns(is_listed=True), on=_UID, how="left")
            kept, in_file = here["verdict"] == "kept", here["is_listed"].is_not_null()
            overlap += Overlap.of(kept.to_numpy(), in_file.to_numpy())
            judged, listed = judged + int(samples["is_judged"].sum()), listed + in_list.height
            missed = here.filter(in_file & ~kept).group_by("verdict", reason_kind(pl.col("reason")).alias("reason"))
            both = pl.concat([reasons, missed.len("samples")])
            reasons = both.group_by("verdict", "reason").agg(pl.col("samples").sum())
    return AgainstFile(
        policy.name,
        str(path),
        origin,
        overlap,
        judged,
        listed,
        listed - overlap.right,
        reasons.sort("samples", "verdict", "reason", descending=[True, False, False]),
    )


def _states(
    store: ShardStore, policy: Policy, stack: ExitStack, progress: ProgressReporter | None
) -> tuple[Iterator[pl.DataFrame], str]:
    """Rows, part by part, sorted: uid_high, uid_low, verdict, reason, is_judged; and where they come from."""
    ledger = current_ledgers(store, [policy]).get(policy.name)
    if ledger is not None:
        columns = [*_UID, "verdict", "reason", "decided_by"]
        return (_with_texts(part.frame) for part in ledger_parts(ledger, columns)), RECORDED
    pool, cut = stack.enter_context(whole_pool(store, progress)), cuts_in_force(store, [policy]).get(policy.name)
    judged = judge_pool(policy, pool, cut)
    frames = (
        pl.DataFrame(
            [
                pl.Series("uid_high", some.rows.uid_high[part]),
                pl.Series("uid_low", some.rows.uid_low[part]),
                Texts(some.verdict, list(STATES)).series("verdict", part),
                some.reason.series("reason", part),
                Texts(some.step, [one.rank_by for one in some.cut.cuts]).series("decided_by", part),
            ]
        )
        for some in judged.parts()
        for part in stretches(len(some.rows), PART_ROWS)
    )
    return map(_with_texts, frames), FITTED if cut is None else FROZEN


def _with_texts(rows: pl.DataFrame) -> pl.DataFrame:
    is_judged = pl.col("decided_by").is_not_null().alias("is_judged")
    return rows.select(*_UID, pl.col("verdict", "reason").cast(pl.String), is_judged)
