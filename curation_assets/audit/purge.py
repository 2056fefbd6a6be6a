"""A ledger without some samples: no row, no rank and no cut of it names them any more."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import (
    PART_ROWS,
    Ledger,
    LedgerError,
    ledger_facts,
    read_ledger,
    rows_of_ledger,
    write_rows,
)
from curation_assets.methods import oriented
from curation_assets.numeric.sorting import as_pairs, ordinals, stretches
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import Judged, cut_without, judge
from curation_assets.selection.rows import UID, PoolRows, Texts, rows_sha256, uid_columns
from curation_assets.stores.parquet import parquet_rows, scan_parquet
from curation_assets.stores.shard_store import ShardStore


def rows_of_samples(path: Path, sample_ids: Collection[str]) -> pl.DataFrame:
    """Rows of a ledger that are of one of the samples: position in it, verdict, reason."""
    wanted = pl.LazyFrame({"sample_id": sorted(sample_ids)}, schema={"sample_id": pl.String}).select(uid_columns())
    scan = scan_parquet(path, row_index_name="position")
    rows = scan.select("position", *UID, pl.col("verdict", "reason").cast(pl.String))
    return rows.join(wanted, on=UID, how="semi").drop(UID).sort("position").collect(engine="streaming")


def names_samples(path: Path, sample_ids: Collection[str]) -> bool:
    """Whether a ledger has a row of one of the samples, or a cut that fell on it."""
    cuts = ledger_facts(path)[1].cuts
    return any(cut.boundary_id in sample_ids for cut in cuts) or not rows_of_samples(path, sample_ids).is_empty()


def write_purged(source: Path, target: Path, sample_ids: Collection[str]) -> PolicyCut:
    """Write the ledger `source` without the rows of some samples, part by part. Other verdicts stay; ranks close up.

    A cut that fell on such a sample names another (`cut_without`). Returns the cuts. Raises LedgerError where the
    verdict of another row would change.
    """
    left = _Left(source, rows_of_samples(source, sample_ids)["position"].to_numpy())
    policy, before, profile, _ = ledger_facts(source)
    rows = (rows_of_ledger(left.ledger(part)[0], left.nowhere) for part in stretches(len(left), PART_ROWS))
    cut, better = cut_without(policy, before, rows, sample_ids), left.removed_ranks()
    counts = np.zeros((len(cut.cuts), 3), dtype=np.int64)
    for part in stretches(len(left), PART_ROWS):
        ledger, _ = left.ledger(part)
        judged = judge(policy, rows_of_ledger(ledger, left.nowhere), cut)
        if not np.array_equal(judged.is_kept, ledger.is_kept):
            raise LedgerError(
                f"{source}: without {len(sample_ids)} samples other rows get another verdict; report this"
            )
        counts += np.array(judged.counts, dtype=np.int64)
        left.shards |= set(ledger.frame["shard"].unique())

    def rows_of(part: slice) -> pl.DataFrame:
        ledger, position = left.ledger(part)
        judged = judge(policy, rows_of_ledger(ledger, left.nowhere), cut)
        rank = ledger.frame["rank"].fill_null(0).to_numpy().copy()
        for step, removed in enumerate(better):
            mine = np.flatnonzero((judged.step == step) & (rank > 0))
            rank[mine] -= np.searchsorted(removed, _rank_keys(judged, step, mine, position)).astype(rank.dtype)
        return ledger.frame.with_columns(pl.Series("rank", rank).replace(0, None))

    footer: dict[str, Any] = {"policy": policy.recorded(), "cut": cut.to_dict(), "profile": profile}
    footer |= {"counts": tuple(map(tuple, counts.tolist())), "rows_sha256": rows_sha256(left)}
    write_rows(rows_of, len(left), footer, target)
    return cut


class _Left:
    """The rows of a ledger without those at some positions, (R,) ascending."""

    def __init__(self, source: Path, removed: np.ndarray) -> None:
        self.source, self.removed, self.nowhere = source, removed, ShardStore(source.parent)
        self.shards = set[str]()
        self._ahead = removed - np.arange(len(removed))  # how many rows that stay come before each

    def __len__(self) -> int:
        return parquet_rows(self.source) - len(self.removed)

    def ledger(self, part: slice, columns: Iterable[str] | None = None) -> tuple[Ledger, np.ndarray]:
        """Consecutive rows of those left, and their positions in the source."""
        first, last = (at + int(np.searchsorted(self._ahead, at, side="right")) for at in (part.start, part.stop - 1))
        ledger = read_ledger(self.source, columns, slice(first, max(first, last + 1)))
        position = first + np.arange(ledger.frame.height)
        is_left = ~np.isin(position, self.removed)
        return replace(ledger, frame=ledger.frame.filter(is_left)), position[is_left]

    def parts(self) -> Iterator[PoolRows]:
        """Which rows these are, for `rows_sha256`."""
        words = sorted(self.shards)
        for part in stretches(len(self), PART_ROWS):
            frame = self.ledger(part, [*UID, "shard", "source_row"])[0].frame
            codes = frame["shard"].cast(pl.String).cast(pl.Enum(words)).to_physical().cast(pl.Int32).to_numpy()
            high, low, source_row = (frame[name].to_numpy() for name in (*UID, "source_row"))
            none = np.zeros(0, dtype=np.uint32)
            yield PoolRows(self.nowhere, high, low, Texts(codes, words), source_row, none, Texts.none(0), none)

    def removed_ranks(self) -> list[np.ndarray]:
        """Per cut, the keys of the removed rows that had a rank in it, in order."""
        policy, cut, profile, counts = ledger_facts(self.source)
        is_removed = pl.col("position").is_in(pl.Series(self.removed).implode())
        rows = scan_parquet(self.source, row_index_name="position").filter(is_removed).collect(engine="streaming")
        ledger = Ledger(policy, cut, profile, counts, rows.sort("position").drop("position"))
        judged = judge(policy, rows_of_ledger(ledger, self.nowhere), cut)
        keys = []
        for step, one in enumerate(cut.cuts):
            values = judged.rows.signal(one.rank_by, policy.seed).values
            reached = np.flatnonzero((judged.step >= step) & ~np.isnan(values))
            keys.append(np.sort(_rank_keys(judged, step, reached, self.removed)))
        return keys


def _rank_keys(judged: Judged, step: int, rows: np.ndarray, position: np.ndarray) -> np.ndarray:
    """(M,) rows → (M,) keys that are sorted as the ranks of a cut: the best value first, equal ones by position."""
    rank_by = judged.cut.cuts[step].rank_by
    values = oriented(rank_by, judged.rows.signal(rank_by, judged.policy.seed).values[rows])
    return as_pairs(~ordinals(values), position[rows])
