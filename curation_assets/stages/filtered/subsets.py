"""The subset files of a pool: per policy DataComp's sorted ids, a table of them, and the keys of samples in their tars.

Where the only change is new shards that come after all others, the files in force are kept: the new
ids are merged into theirs, and the new keys are appended.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from curation_assets.core.table_names import SAMPLES, SUBSETS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import config_of
from curation_assets.flow.graph import tables_of
from curation_assets.numeric.identity import sorted_uids
from curation_assets.selection.judging import multiplicity
from curation_assets.selection.policy import Policy
from curation_assets.stores.arrays import load_npy
from curation_assets.stores.columns import halves_of
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.denied import compared_rows
from curation_assets.stores.subsets import key_lines, write_sorted_subset
from curation_assets.stores.tar_samples import sample_key


def write_subsets(ctx: PoolContext, folder: Path) -> None:
    """Write the files into the folder. Memory holds a shard, and the ids of one subset."""
    policies, shards = policies_of(ctx), ctx.store.partitions(SAMPLES)
    held = _held_shards(ctx, policies, shards)
    denylist = ctx.denylist  # a takedown that is not applied yet already counts
    with contextlib.ExitStack() as stack:
        keys, ids = {}, {}
        for policy in policies:
            path = folder / f"{policy.name}.keys.tsv"
            if held:
                shutil.copyfile(ctx.store.checked_file(SUBSETS, path.name), path)
            keys[policy.name] = stack.enter_context(path.open("ab"))
            ids[policy.name] = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        for shard in shards[held:]:
            if denylist:
                rows = compared_rows(ctx.store, shard, ["tar", "member"])
                rows = rows.filter(~denylist.denied(rows))
            else:
                rows = ctx.store.read(SAMPLES, shard, columns=["sample_id", "source_row", "tar", "member"])
            rows = rows.with_columns(key=sample_key(pl.col("member")))
            for policy in policies:
                kept = _kept_rows(ctx, policy, shard, rows)
                keys[policy.name].write(key_lines(kept.select("tar", "key").drop_nulls()))
                ids[policy.name].write(halves_of(kept["sample_id"]).tobytes())
        for policy in policies:
            ids[policy.name].seek(0)
            before = load_npy(ctx.store.checked_file(SUBSETS, f"{policy.name}.npy")) if held else None
            packed = _packed_ids(ids[policy.name], before)
            write_sorted_subset(folder / f"{policy.name}.npy", folder / f"{policy.name}.parquet", packed)
            del packed  # so that the ids of two policies are never in memory together
    ctx.store.remove("filtered/ledger")  # earlier versions had ledgers as files of the whole pool


def _packed_ids(file: IO[bytes], before: np.ndarray | None) -> np.ndarray:
    """The ids in a file, and those of the subset in force, as sorted u8,u8."""
    halves = np.fromfile(file, dtype=np.uint64).reshape(-1, 2)
    if before is not None:
        halves = np.concatenate([before.view(np.uint64).reshape(-1, 2), halves])
    return sorted_uids(halves)


def _held_shards(ctx: PoolContext, policies: Sequence[Policy], shards: Sequence[str]) -> int:
    """How many shards, the first ones, the files in force hold, if only later shards are new; else 0."""
    manifest = ctx.store.manifest(SUBSETS)
    if manifest is None:
        return 0
    table = tables_of(ctx)[SUBSETS]
    if not manifest.is_made_from(table.version, config_sha256(config_of(ctx, table, None)), (), None):
        return 0
    read = manifest.contents_read
    count = len({shard for _, shard in read})
    assets = (SAMPLES, *(f"filtered/{policy.name}" for policy in policies))
    now = {(asset, shard): ctx.store.content(asset, shard) for asset in assets for shard in shards[:count]}
    return count if read == now and count < len(shards) else 0


def _kept_rows(ctx: PoolContext, policy: Policy, shard: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of a shard that a policy keeps; a row that counts several times is repeated."""
    verdicts = ctx.store.read(f"filtered/{policy.name}", shard, columns=["source_row", "verdict", "value"])
    times = verdicts.select("source_row", times=pl.Series(multiplicity(policy, verdicts))).filter(pl.col("times") > 0)
    kept = rows.join(times, on="source_row", how="inner", maintain_order="left")
    if not policy.repeats:
        return kept
    return kept[np.repeat(np.arange(kept.height), kept["times"].to_numpy())]
