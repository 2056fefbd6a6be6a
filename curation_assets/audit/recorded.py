"""The rows of a pool as its ledgers recorded them: sorted already, and read from one file instead of all shards."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.audit.ledger import LedgerError, ledger_facts, ledger_path, ledger_policies, signal_column
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.table_names import DUPLICATES, LEDGER, SAMPLES
from curation_assets.selection.cut import PolicyCut, cut_of_frame
from curation_assets.selection.left_out import recorded_left_out
from curation_assets.selection.part_by_part import Pool
from curation_assets.selection.policy import Policy
from curation_assets.selection.ranges import fits_into_memory, whole_pool
from curation_assets.selection.rows import KEPT, STATES, PoolRows, Signal, Texts, stored_order
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import MissingTableError, ShardStore


def current_ledgers(store: ShardStore, policies: Sequence[Policy]) -> dict[str, Path]:
    """Policy → its ledger, for those that are recorded as they are now, of the pool as it is now.

    A ledger is left out where the policy has changed since, or the content of its cut or of a table that it reads.
    """
    manifest, recorded = store.manifest(LEDGER), set(ledger_policies(store))
    read: dict[str, set[_Version]] = {}
    for version in () if manifest is None else manifest.inputs:
        read.setdefault(version.asset, set()).add((version.partition, version.content_sha256))
    current: dict[str, Path] = {}
    now = functools.cache(functools.partial(_stored_versions, store))
    for policy in policies:
        if policy.name not in recorded:
            continue
        path = ledger_path(store, policy.name)
        assets = [SAMPLES, DUPLICATES, f"filtered/{policy.name}_cut", *policy.tables]
        is_same = all(read.get(asset, set()) == now(asset) for asset in assets)
        if is_same and ledger_facts(path)[0].version == policy.version:
            current[policy.name] = path
    return current


_Version = tuple[str | None, str]  # partition, content hash


def _stored_versions(store: ShardStore, asset: str) -> set[_Version]:
    """What is stored of a table; nothing where there is none."""
    try:
        versions = store.input_versions(LEDGER, [(asset, None)])
    except MissingTableError:
        return set()
    return {(version.partition, version.content_sha256) for version in versions}


def cuts_in_force(store: ShardStore, policies: Sequence[Policy]) -> dict[str, PolicyCut]:
    """Policy → its frozen cut, for those that were cut before as they are now."""
    cuts = {}
    for policy in policies:
        asset = f"filtered/{policy.name}_cut"
        if store.table_path(asset).is_file():
            cut = cut_of_frame(store.read(asset))
            if cut.policy_version == policy.version:
                cuts[policy.name] = cut
    return cuts


@contextmanager
def recorded_pool(
    store: ShardStore, ledgers: Sequence[Path], progress: ProgressReporter | None = None
) -> Iterator[Pool]:
    """`recorded_rows` of `ledgers`, if there are any, where they fit into memory; else the pool as its tables have it,
    which is the same where the ledgers are current."""
    if ledgers and fits_into_memory(store):
        yield recorded_rows(ledgers, store)
        return
    with whole_pool(store, progress) as pool:
        yield pool


def recorded_rows(ledgers: Sequence[Path], store: ShardStore) -> PoolRows:
    """The pool as ledgers of the same rows have it: rows, states, and the values that their policies ranked by.

    Why a value is missing is not read. A recipe's scores come from its table, as does every other signal. Raises
    LedgerError where that table has other values now.
    """
    first = ledger_facts(ledgers[0])[0]
    frame = read_parquet(
        ledgers[0],
        columns=["uid_high", "uid_low", "shard", "source_row", "decided_by", "verdict"]
        + ["reason"] * bool(first.licences or first.decontaminate),
    )
    was_kept = pl.col("decided_by").is_not_null()
    if "reason" in frame.columns:
        was_kept |= recorded_left_out(first)  # what a policy leaves out is read from the tables, for any policy
    verdict = frame["verdict"].cast(pl.Enum(STATES)).to_physical().cast(pl.Int8).to_numpy()
    shard = _coded(frame["shard"])
    source_row = frame["source_row"].to_numpy()
    rows = PoolRows(
        store,
        frame["uid_high"].to_numpy(),
        frame["uid_low"].to_numpy(),
        shard,
        source_row,
        np.where(frame.select(was_kept).to_series().to_numpy(), np.int8(KEPT), verdict),
        Texts.none(frame.height),
        stored_order(shard.codes, source_row, len(shard.words)),
    )
    for path in ledgers:
        policy = ledger_facts(path)[0]
        for reference in {policy.rank_by, *(prefilter.rank_by for prefilter in policy.prefilters)}:
            _provide(rows, path, reference, policy.seed)
    return rows


def _coded(column: pl.Series) -> Texts:
    if not isinstance(column.dtype, pl.Enum):
        return Texts.of(column)
    return Texts(column.to_physical().cast(pl.Int32).to_numpy(), column.dtype.categories.to_list())


def _provide(rows: PoolRows, path: Path, reference: str, seed: int) -> None:
    column = signal_column(reference)
    recorded = read_parquet(path, columns=[column])[column].fill_null(float("nan")).to_numpy()
    if not reference.startswith("fused."):
        rows.provide(reference, Signal(recorded, Texts.none(len(rows))), seed)
    elif not np.array_equal(rows.signal(reference).values, recorded, equal_nan=True):
        raise LedgerError(f"{path} records other values of {reference} than its table has; `curate run` the pool again")
