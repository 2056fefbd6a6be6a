"""Rows of a pool as a denylist is compared with them, and those that it knows: what a takedown is yet to take out."""

from collections.abc import Iterable, Sequence

import polars as pl

from curation_assets.core.table_names import PROVENANCE, SAMPLES
from curation_assets.stores.denylist import COLUMNS, Denylist
from curation_assets.stores.shard_store import ShardStore

_KEY = ("shard", "source_row")


def compared_rows(store: ShardStore, shard: str, more: Sequence[str] = ()) -> pl.DataFrame:
    """Rows of raw/samples of a shard, in order, with every column of COLUMNS that the pool's tables have: owner and
    page are in raw/provenance (null for rows that it lacks). `more`: further columns of raw/samples.
    """
    samples = _read(store, SAMPLES, shard, (*COLUMNS, *more))
    if not store.table_path(PROVENANCE, shard).is_file():
        return samples
    owners = _read(store, PROVENANCE, shard, [name for name in COLUMNS if name not in samples.columns])
    return samples.join(owners, on=_KEY, how="left", maintain_order="left")


def denied_rows(store: ShardStore, denylist: Denylist, more: Sequence[str] = ()) -> pl.DataFrame:
    """The rows of a pool that the list knows, as `compared_rows` has them; nothing is read where the list is empty."""
    shards = store.partitions(SAMPLES) if denylist else []
    rows = (compared_rows(store, shard, more) for shard in shards)
    schema = {"shard": pl.String, "source_row": pl.Int64, **dict.fromkeys(["sample_id", *more], pl.String)}
    return pl.concat([pl.DataFrame(schema=schema), *(one.filter(denylist.denied(one)) for one in rows)], how="diagonal")


def _read(store: ShardStore, table: str, shard: str, names: Iterable[str]) -> pl.DataFrame:
    rows = store.scan(table, [shard])
    there = set(rows.collect_schema().names())
    return rows.select(*_KEY, *dict.fromkeys(name for name in names if name in there and name not in _KEY)).collect()
