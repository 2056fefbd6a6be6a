"""Rows that stay and share something with samples that are taken down: their image, byte for byte, or a text."""

from typing import Any

import polars as pl

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.denylist import TAKEDOWN
from curation_assets.stores.scrubbing import HASHES
from curation_assets.stores.shard_store import ShardStore

_TEXTS = ("url", "caption")


def shared_with_others(ctx: PoolContext, samples: pl.DataFrame) -> list[str]:
    """What of the texts and image hashes of samples (SAMPLE_SCHEMA) other rows of the pool have, too, sorted.

    It is theirs as well: finding it afterwards says nothing of the samples.
    """
    shared = set[str]()
    for table, columns in ((REGISTERED_SHARDS, _TEXTS), (SAMPLES, (*_TEXTS, *HASHES))):
        if not ctx.store.partitions(table):
            continue
        rows = ctx.store.scan(table).filter(~pl.col("sample_id").is_in(samples["sample_id"].unique().implode()))
        for name in set(columns) & set(rows.collect_schema()):
            mine = samples[name].drop_nulls().unique().implode()
            shared.update(rows.select(name).filter(pl.col(name).is_in(mine)).unique().collect()[name])
    return sorted(shared)


def same_images(ctx: PoolContext, samples: pl.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of all pools that stay and whose image has the bytes of one of the samples, as stored or as downloaded, each
    with the id of that sample; and sentences on pools that could not be looked at.
    """
    hashes = pl.concat([samples.select("sample_id", pl.col(name).alias("digest")) for name in HASHES])
    known = dict(hashes.drop_nulls().unique("digest").select("digest", "sample_id").iter_rows())
    ids, found, not_done = set(samples["sample_id"]), list[dict[str, Any]](), list[str]()
    for pool in list_pools(ctx.settings) if known else ():
        store = ShardStore(ctx.settings.work(pool))
        try:
            rows = pl.DataFrame() if not store.partitions(SAMPLES) else (
                store.scan(SAMPLES)
                .filter(pl.any_horizontal(pl.col(HASHES).is_in(list(known))) & pl.col("reason").ne_missing(TAKEDOWN))
                .select("sample_id", "shard", "source_row", *HASHES)
                .sort("shard", "source_row")
                .collect()
            )  # fmt: skip
        except (
            *EXPECTED_ERRORS,
            pl.exceptions.PolarsError,
        ) as error:  # this takedown does not wait for it
            not_done.append(f"pool {pool} could not be searched for the same images: {error}")
            continue
        for row in rows.iter_rows(named=True):
            if pool != ctx.pool.name or row["sample_id"] not in ids:
                same_as = next(known[row[name]] for name in HASHES if row[name] in known)
                place = {name: row[name] for name in ("sample_id", "shard", "source_row")}
                found.append({"pool": pool, **place, "same_as": same_as})
    return found, not_done
