"""provenance.parquet of a release: raw/provenance of its rows, without URLs, by the halves of their ids."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from curation_assets.audit.ledger import Ledger
from curation_assets.core.table_names import PROVENANCE
from curation_assets.selection.rows import UID, uid_columns
from curation_assets.stores.atomic import replacing
from curation_assets.stores.provenance import PROVENANCE_SCHEMA
from curation_assets.stores.shard_store import ShardStore

#: What a release records of its rows beside where they come from; null where the pool has no such table.
OF_RELEASES = pl.Schema(
    {
        "caption_source": pl.String(),  # where captions were chosen: raw, or which generated one
        "compared_by": pl.String(),  # pdq, copy, caption: how it could be compared with benchmarks; '' by nothing
        "benchmark": pl.String(),  # in which it is, or to which it is near
        "mixture_group": pl.String(),  # of the mixture that the policy ranks by
        "entries": pl.Int64(),  # how often it is in the set of that mixture
    }
)
_SCHEMA = {**dict.fromkeys(UID, pl.UInt64()), **PROVENANCE_SCHEMA, **OF_RELEASES}
_COLUMNS = [name for name in _SCHEMA if name not in ("sample_id", "source_url")]
_GROUP_ROWS = 100_000


def write_provenance(
    store: ShardStore,
    path: Path,
    further: Callable[[str], pl.DataFrame],
    *,
    without: Collection[str] = (),
) -> None:
    """Write raw/provenance of all shards as one file, shard after shard, without some samples. Holds one shard.

    `further`: shard → source_row and those of OF_RELEASES that the pool knows.
    """
    _write(path, (_rows(store, shard, further(shard)) for shard in sorted(store.partitions(PROVENANCE))), without)


def _rows(store: ShardStore, shard: str, further: pl.DataFrame) -> pl.DataFrame:
    rows = store.read(PROVENANCE, shard).with_columns(uid_columns())
    return rows.join(further, on="source_row", how="left", maintain_order="left")


def write_purged_provenance(source: Path, target: Path, sample_ids: Collection[str]) -> None:
    """Write the file of a release without the rows of some samples."""
    _write(target, _groups(source), sample_ids)


def has_rows_of(provenance: Path, ledger: Ledger) -> bool:
    """Whether a release's file has the rows of its ledger, each once, in whichever order."""
    of_ledger = (
        part.select(*uid_columns(), "shard", "source_row")
        for part in ledger.parts(["sample_id", "shard", "source_row"])
    )
    return _hash_of(_groups(provenance)) == _hash_of(of_ledger)


def _hash_of(parts: Iterable[pl.DataFrame]) -> tuple[int, int]:
    """How many rows there are, and which, in any order."""
    rows, total = 0, 0
    for part in parts:
        keys = part.select(*UID, pl.col("shard").cast(pl.String), pl.col("source_row").cast(pl.Int64))
        rows += keys.height
        total += int(keys.hash_rows().to_numpy().sum(dtype=np.uint64))  # wraps around
    return rows, total % 2**64


def _groups(path: Path) -> Iterator[pl.DataFrame]:
    with pq.ParquetFile(path, memory_map=False) as file:
        yield from (pl.DataFrame(file.read_row_group(number)) for number in range(file.num_row_groups))


def _write(path: Path, parts: Iterable[pl.DataFrame], without: Collection[str]) -> None:
    removed = pl.DataFrame({"sample_id": sorted(without)}, schema={"sample_id": pl.String}).select(uid_columns())
    empty = pl.DataFrame(schema={name: _SCHEMA[name] for name in _COLUMNS})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, empty.to_arrow().schema, compression="zstd") as file:
        for part in chain([empty], parts):
            absent = [pl.lit(None, kind).alias(name) for name, kind in OF_RELEASES.items() if name not in part.columns]
            kept = part.with_columns(absent).select(_COLUMNS).join(removed, on=UID, how="anti", maintain_order="left")
            file.write_table(kept.to_arrow(), row_group_size=_GROUP_ROWS)
