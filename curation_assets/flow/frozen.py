"""Frozen cuts whose inputs changed since they were fitted: they stay in force, and are shown."""

import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.selection.cut import cut_of_frame


def frozen_notes(ctx: PoolContext) -> list[str]:
    """Sentences on policies whose cuts were fitted on other rows or values than the pool has now: the same one once."""
    notes: dict[str, list[str]] = {}
    contents: dict[str, dict[str, str]] = {}  # table → shard → what is stored now, read once for all policies
    for policy in policies_of(ctx):
        cut = f"filtered/{policy.name}_cut"
        changes = _changes(ctx, cut, contents) if ctx.store.partitions(f"filtered/{policy.name}") else ""
        if changes:
            fitted = cut_of_frame(ctx.store.read(cut)).pool_size
            verdicts = ctx.store.scan(f"filtered/{policy.name}")
            now = verdicts.select(pl.col("decided_by").count()).collect(engine="streaming").item()
            size = f"the pool has {now:,}" if now != fitted else "as many as the pool has"
            note = f"cut frozen on {fitted:,} samples, {size}; {changes}; `curate refit {ctx.pool.name}` fits it again"
            notes.setdefault(note, []).append(policy.name)
    return [f"{', '.join(names)}: {note}" for note, names in notes.items()]


def _changes(ctx: PoolContext, name: str, contents: dict[str, dict[str, str]]) -> str:
    """'2 shards came, 1 changed': what a whole-pool table read, against what is stored; '' for nothing."""
    manifest = ctx.store.manifest(name)
    if manifest is None:
        return ""
    before: dict[str, dict[str, str]] = {}
    for read in manifest.inputs:
        if read.partition is not None:
            before.setdefault(read.asset, {})[read.partition] = read.content_sha256
    came, left, changed = set[str](), set[str](), set[str]()
    for asset, fitted in before.items():
        now = contents[asset] if asset in contents else contents.setdefault(asset, _stored(ctx, asset))
        came |= now.keys() - fitted.keys()
        left |= fitted.keys() - now.keys()
        changed |= {shard for shard in fitted.keys() & now.keys() if fitted[shard] != now[shard]}
    counts = [(len(came), "came"), (len(left), "left"), (len(changed - came - left), "changed")]
    shown = [f"{count:,} shards {what}" for count, what in counts if count]
    return ", ".join(shown) and f"since then {', '.join(shown)}"


def _stored(ctx: PoolContext, asset: str) -> dict[str, str]:
    manifests = ((shard, ctx.store.manifest(asset, shard)) for shard in ctx.store.partitions(asset))
    return {shard: manifest.content_sha256 for shard, manifest in manifests if manifest is not None}
