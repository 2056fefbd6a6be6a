"""Frozen cuts whose inputs changed since they were fitted: they stay in force, and are shown."""

import functools
from collections.abc import Callable

import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.selection.cut import cut_of_frame


def frozen_notes(ctx: PoolContext) -> list[str]:
    """Sentences on policies whose cuts were fitted on other rows or values than the pool has now: the same one once."""
    notes: dict[str, list[str]] = {}
    content = functools.cache(ctx.store.content)  # all policies read the same tables
    for policy in policies_of(ctx):
        cut = f"filtered/{policy.name}_cut"
        changes = _changes(ctx, cut, content) if ctx.store.partitions(f"filtered/{policy.name}") else ""
        if changes:
            fitted = cut_of_frame(ctx.store.read(cut)).pool_size
            verdicts = ctx.store.scan(f"filtered/{policy.name}")
            now = verdicts.select(pl.col("decided_by").count()).collect(engine="streaming").item()
            size = f"the pool has {now:,}" if now != fitted else "as many as the pool has"
            note = f"cut frozen on {fitted:,} samples, {size}; {changes}; `curate refit {ctx.pool.name}` fits it again"
            notes.setdefault(note, []).append(policy.name)
    return [f"{', '.join(names)}: {note}" for note, names in notes.items()]


def _changes(ctx: PoolContext, name: str, content: Callable[..., str | None]) -> str:
    """'2 shards came, 1 changed': what a whole-pool table read, against what is stored; '' for nothing."""
    manifest = ctx.store.manifest(name)
    if manifest is None:
        return ""
    read = {key: was for key, was in manifest.contents_read.items() if key[1] is not None}
    assets = {asset for asset, _ in read}
    stored: list[tuple[str, str | None]] = [(asset, shard) for asset in assets for shard in ctx.store.partitions(asset)]
    now = {key: content(*key) for key in stored}
    came, left = ({shard for _, shard in keys} for keys in (now.keys() - read.keys(), read.keys() - now.keys()))
    changed = {key[1] for key, was in read.items() if now.get(key) != was} - came - left
    counts = [(len(came), "came"), (len(left), "left"), (len(changed), "changed")]
    shown = [f"{count:,} shards {what}" for count, what in counts if count]
    return ", ".join(shown) and f"since then {', '.join(shown)}"
