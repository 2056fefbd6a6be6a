"""provenance.parquet of a release: raw/provenance of its rows, without URLs, by the halves of their ids."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow.parquet as pq

from curation_assets.core.table_names import PROVENANCE
from curation_assets.numeric.sorting import stretches
from curation_assets.selection.rows import UID, uid_columns
from curation_assets.stores.atomic import replacing
from curation_assets.stores.external_sort import same_rows, sorted_stretches
from curation_assets.stores.parquet import parquet_rows, scan_parquet
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
_PART_ROWS = 1_000_000


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
    with pq.ParquetFile(source, memory_map=False) as file:
        groups = (pl.DataFrame(file.read_row_group(number)) for number in range(file.num_row_groups))
        _write(target, groups, sample_ids)


def has_rows_of(provenance: Path, ledger: Path) -> bool:
    """Whether a release's file has the rows of its ledger, each once."""
    key = [*UID, "shard", "source_row"]

    def parts(path: Path) -> Iterator[pl.DataFrame]:
        rows = scan_parquet(path).select(pl.col(name).cast(pl.String) if name == "shard" else name for name in key)
        return (rows.slice(part.start, _PART_ROWS).collect() for part in stretches(parquet_rows(path), _PART_ROWS))

    with TemporaryDirectory(prefix="provenance-", ignore_cleanup_errors=True) as scratch:
        return same_rows(*(sorted_stretches(parts(path), key, Path(scratch)) for path in (provenance, ledger)))


def _write(path: Path, parts: Iterable[pl.DataFrame], without: Collection[str]) -> None:
    removed = pl.DataFrame({"sample_id": sorted(without)}, schema={"sample_id": pl.String}).select(uid_columns())
    empty = pl.DataFrame(schema={name: _SCHEMA[name] for name in _COLUMNS})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, empty.to_arrow().schema, compression="zstd") as file:
        for part in chain([empty], parts):
            absent = [pl.lit(None, kind).alias(name) for name, kind in OF_RELEASES.items() if name not in part.columns]
            kept = part.with_columns(absent).select(_COLUMNS).join(removed, on=UID, how="anti", maintain_order="left")
            file.write_table(kept.to_arrow(), row_group_size=_GROUP_ROWS)
