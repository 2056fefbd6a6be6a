"""A ledger without some samples: no row, no rank and no cut of it names them any more."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import Ledger, LedgerError, ledger_facts, read_ledger, rows_of_ledger, write_rows
from curation_assets.methods import oriented
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import Judged, judge
from curation_assets.selection.rows import PoolRows, rows_sha256, uid_columns
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.shard_store import ShardStore

_UID = ["uid_high", "uid_low"]


def rows_of_samples(path: Path, sample_ids: Collection[str]) -> pl.DataFrame:
    """Rows of a ledger that are of one of the samples: position in it, verdict, reason."""
    wanted = pl.LazyFrame({"sample_id": sorted(sample_ids)}, schema={"sample_id": pl.String}).select(uid_columns())
    scan = scan_parquet(path, row_index_name="position")
    rows = scan.select("position", *_UID, pl.col("verdict", "reason").cast(pl.String))
    return rows.join(wanted, on=_UID, how="semi").drop(_UID).sort("position").collect(engine="streaming")


def names_samples(path: Path, sample_ids: Collection[str]) -> bool:
    """Whether a ledger has a row of one of the samples, or a cut that fell on it."""
    cuts = ledger_facts(path)[1].cuts
    return any(cut.boundary_id in sample_ids for cut in cuts) or not rows_of_samples(path, sample_ids).is_empty()


def write_purged(source: Path, target: Path, sample_ids: Collection[str]) -> Ledger:
    """Write the ledger `source` without the rows of some samples. All other verdicts stay; ranks close up.

    A cut that fell on such a sample moves to the next one that passes. Raises LedgerError where the verdict of
    another row would change.
    """
    ledger, nowhere = read_ledger(source), ShardStore(source.parent)
    is_removed = np.zeros(ledger.frame.height, dtype=bool)
    is_removed[rows_of_samples(source, sample_ids)["position"].to_numpy()] = True
    before = rows_of_ledger(ledger, nowhere)
    cut = _cut_without(judge(ledger.policy, before, ledger.cut), before, is_removed, sample_ids)
    left = ledger.frame.filter(pl.Series(~is_removed))
    rows = rows_of_ledger(replace(ledger, frame=left), nowhere)
    judged = judge(ledger.policy, rows, cut)
    if not np.array_equal(judged.is_kept, ledger.is_kept[~is_removed]):
        raise LedgerError(f"{source}: without {len(sample_ids)} samples other rows get another verdict; report this")
    frame = left.with_columns(
        pl.Series("rank", judged.rank),
        pl.Series("threshold", judged.threshold).fill_nan(None),
        pl.Series("margin", judged.margin).fill_nan(None),
    ).with_columns(pl.when(pl.col("rank") > 0).then(pl.col("rank")).alias("rank"))
    footer: dict[str, Any] = {"policy": ledger.policy.recorded(), "cut": cut.to_dict(), "profile": ledger.profile}
    footer |= {"counts": judged.counts, "rows_sha256": rows_sha256(rows)}
    write_rows(lambda part: frame[part], frame.height, footer, target)
    return replace(ledger, frame=frame, cut=cut, counts=judged.counts)


def _cut_without(judged: Judged, rows: PoolRows, is_removed: np.ndarray, sample_ids: Collection[str]) -> PolicyCut:
    """The same cuts, none of which falls on one of the samples; (N,) `is_removed`: their rows."""
    cuts = list(judged.cut.cuts)
    for number, cut in enumerate(cuts):
        if cut.boundary_id not in sample_ids:
            continue
        values = rows.signal(cut.rank_by, judged.policy.seed).values
        passes = (judged.step > number) | ((judged.step == number) & judged.is_kept)
        passing = np.flatnonzero(passes & ~is_removed)
        tied = passing[values[passing] == cut.threshold]
        if len(tied):  # rows are sorted by id: the last of those that passed by their id
            last = tied[-1:]
            boundary = uid_texts(rows.uid_high[last], rows.uid_low[last])[0]
            cuts[number] = replace(cut, boundary_id=boundary)
        elif len(passing):
            worst = float(oriented(cut.rank_by, values[passing]).min())
            cuts[number] = replace(cut, threshold=oriented(cut.rank_by, worst), boundary_id=None)
        else:
            cuts[number] = replace(cut, threshold=None, boundary_id=None)  # nobody passes, whatever its value
    return replace(judged.cut, cuts=tuple(cuts))
