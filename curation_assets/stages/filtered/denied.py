"""Which kept rows of a pool the denylist knows: samples that a takedown is yet to take out."""

import hashlib

import polars as pl

from curation_assets.core.seal import read_sealed_json
from curation_assets.core.table_names import PROVENANCE, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.stores.denied import compared_rows
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.documents import save_document

FILE = "index/denied.json"  # of the pool's work folder: what is known of rows and list as they are


def denied_rows(ctx: PoolContext) -> str | None:
    """A digest of the ids of these rows; None where there is none.

    It is looked for once per shard and list: in a pool of a million rows that takes most of a minute.
    """
    denylist = ctx.denylist
    if not denylist:
        return None
    path = ctx.store.root / FILE
    known = read_sealed_json(path) or {}
    before = known["shards"] if known.get("denylist") == denylist.version else {}
    shards: dict[str, list[str]] = {}  # shard → content of what is compared, and a digest of those denied or ''
    for shard in ctx.store.partitions(SAMPLES):
        manifests = (ctx.store.manifest(name, shard) for name in (SAMPLES, PROVENANCE))
        content = " ".join(manifest.content_sha256 for manifest in manifests if manifest is not None)
        found = before.get(shard)
        if found is None or found[0] != content:
            found = [content, _denied_of(ctx, shard, denylist)]
        shards[shard] = found
    if shards != before:
        save_document(path, {"denylist": denylist.version, "shards": shards})
    found_in = [digest for _, digest in shards.values() if digest]
    return hashlib.sha256("".join(found_in).encode()).hexdigest() if found_in else None


def _denied_of(ctx: PoolContext, shard: str, denylist: Denylist) -> str:
    rows = compared_rows(ctx.store, shard, ["status"]).filter(pl.col("status") == "kept")
    ids = rows.filter(denylist.denied(rows))["sample_id"].sort().to_list()
    return hashlib.sha256("".join(ids).encode()).hexdigest() if ids else ""
