"""raw: what came in. Registered rows, downloads, and one sample row per input row with its terminal state."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import polars as pl

from curation_assets.audit.lookup import VERSION as LOOKUP_VERSION
from curation_assets.audit.lookup import write_lookup
from curation_assets.core.table_names import DOWNLOADS, LOOKUP, REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Folder, Needs, Shown, Table, TableCheck
from curation_assets.sources.base import version_of
from curation_assets.sources.shards import (
    build_samples,
    download,
    hash_list_of,
    register_shard,
    source_fingerprint,
    taken_down_downloads,
)
from curation_assets.stages.raw.deliveries import shard_notes
from curation_assets.stages.raw.provenance import provenance_table
from curation_assets.stores.samples import taken_down_rows

#: While the last rows of a shard wait for their servers, the next one is under way.
DOWNLOADS_AT_ONCE = 2


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage."""
    yield Table(
        name=REGISTERED_SHARDS,
        grain="shard",
        inputs=(),
        version=version_of(ctx.pool.kind),
        description="One row per input row of the shard, as its owner listed it: url, caption, identity; and one for "
        "what cannot be read of it.",
        compute=lambda ctx, shard: register_shard(ctx.pool, shard, ctx.settings),
        config_by_key=_fingerprint,
        taken_down=taken_down_rows,
        shown=Shown(
            checks=(
                TableCheck("source_whole", "All of the shard's source could be read, and it holds rows.", shard_notes),
            )
        ),
    )
    yield Table(
        name=DOWNLOADS,
        grain="shard",
        inputs=(REGISTERED_SHARDS,),
        version="2",
        description="One row per input row: how its download ended (img2dataset), with the reason of every failure, "
        "and what its owner declares about training. Only http and https; private addresses, opt-outs, robots.txt and "
        "oversized files are refused.",
        compute=_downloads,
        needs=Needs(at_once=DOWNLOADS_AT_ONCE if ctx.pool.opens_urls else 1),
        config=lambda ctx: ctx.pool.download_config(),
        continues=REGISTERED_SHARDS,
        taken_down=partial(taken_down_downloads, ctx.pool),
        shown=Shown(kinds=("polars", "python")),
    )
    yield Table(
        name=SAMPLES,
        grain="shard",
        inputs=(REGISTERED_SHARDS, DOWNLOADS),
        version="1",
        compute=_samples,
        config=_samples_config,
        continues=REGISTERED_SHARDS,
        description=(
            "One row per input row: sample_id, where its image lies, its size and hash, and its terminal state: "
            "kept, dropped (reason) or failed (reason)."
        ),
    )
    yield provenance_table(ctx)
    yield Table(
        name=LOOKUP,
        grain="pool",
        inputs=(SAMPLES,),
        version=LOOKUP_VERSION,
        description="`keys.npy`: from ids, URLs and image hashes to shards, so that `curate why` reads one shard.",
        compute=Folder(lambda ctx, folder: write_lookup(ctx.store, folder)),
        shown=Shown(kinds=("numpy",)),
    )


def _fingerprint(ctx: PoolContext, shard: str | None) -> Any:
    assert shard is not None, "rows are registered shard by shard"
    return source_fingerprint(ctx.pool, shard, ctx.settings)


def _samples_config(ctx: PoolContext) -> Any:
    config = asdict(ctx.pool.download.limits)
    listed = hash_list_of(ctx.pool)
    return config | {"hash_list": listed.digest, "turned": "pixels"} if listed else config


def _downloads(ctx: PoolContext, shard: str) -> pl.DataFrame:
    registered = ctx.store.read(REGISTERED_SHARDS, shard)
    with ctx.progress.task(f"download {shard}", registered.height) as advance:
        return download(
            ctx.pool, shard, registered, ctx.settings, advance, ctx.progress.note, is_stopped=ctx.is_stopped
        )


def _samples(ctx: PoolContext, shard: str) -> pl.DataFrame:
    registered = ctx.store.read(REGISTERED_SHARDS, shard)
    downloads = ctx.store.read(DOWNLOADS, shard)
    return build_samples(ctx.pool, shard, registered, downloads, ctx.settings)
