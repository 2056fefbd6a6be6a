"""Rows of samples that are taken down leave the stored tables of a shard; its other rows stay, bit for bit.

A row of a table of shards depends on no other row, so nothing is computed again and no model is loaded. Each table
stays as fresh as it was: where it counts as made from the rows before of another, it now does from those after.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.progress import Advance
from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.graph import inputs_first
from curation_assets.flow.table import Table, Tables
from curation_assets.scoring.upstream import UPSTREAM
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.stores.denylist import TAKEDOWN
from curation_assets.stores.manifest import InputVersion, Manifest
from curation_assets.stores.shard_store import ShardStore

KEY = ("sample_id", "shard", "source_row")
Replaced = dict[InputVersion, str]  # version of a table → its content afterwards


def emptied(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a table of shards once their samples are taken down: their key, and the reason that raw/samples has."""
    has_state = not {"status", "verdict"}.isdisjoint(rows.columns)
    said = {
        **dict.fromkeys(("status", "verdict"), "dropped"),
        "reason": TAKEDOWN if has_state else f"{UPSTREAM}dropped:{TAKEDOWN}",
        "has_image": False,
    }
    return rows.with_columns(
        pl.lit(said.get(name), kind).alias(name) for name, kind in rows.schema.items() if name not in KEY
    )


def take_down_rows(store: ShardStore, tables: Tables, samples: pl.DataFrame, advance: Advance) -> None:
    """Take samples (sample_id, shard, source_row) out of all stored tables of their shards, declared or not.

    A table that cannot be read, or has no column by which rows are known, goes whole: it may hold one of them.
    `advance` is called shard by shard. Killed in between, it is to be called again.
    """
    stored = stored_tables(store)
    for (shard,), of_shard in samples.sort("shard").group_by("shard", maintain_order=True):
        names = [name for name in stored if store.table_path(name, str(shard)).is_file()]
        _take_out(store, tables, str(shard), of_shard, names)
        advance(1)


def _take_out(store: ShardStore, tables: Tables, shard: str, samples: pl.DataFrame, names: Sequence[str]) -> None:
    manifests, replaced = dict[str, Manifest](), Replaced()
    for name in names:
        try:
            after, manifest = _without(store.read(name, shard), samples, tables.get(name)), store.manifest(name, shard)
        except StoreError:
            after = manifest = None
        if after is None or manifest is None:
            store.remove(name, shard)
            continue
        manifests[name] = manifest
        replaced[manifest.version] = frame_sha256(after)
    reads = {name: {read.asset for read in one.inputs} & manifests.keys() for name, one in manifests.items()}
    for name in reversed(inputs_first(reads)):  # of one that is killed, the next finds the inputs as they were
        manifest = manifests[name]
        inputs = made_from(manifest, replaced)
        if inputs != manifest.inputs or replaced[manifest.version] != manifest.content_sha256:
            after = _without(store.read(name, shard), samples, tables.get(name))
            assert after is not None, name
            store.rewrite(name, after, shard, inputs=inputs)


def rewrite_fit(store: ShardStore, tables: Tables, name: str, after: pl.DataFrame) -> None:
    """Store other rows of a whole-pool table that decide no value of a row; the shards that read it count as made
    from these."""
    manifest = store.manifest(name)
    assert manifest is not None, name
    replaced = {manifest.version: frame_sha256(after)}
    for reader in (one.name for one in tables.values() if name in one.inputs and one.grain == "shard"):
        for shard in store.partitions(reader):
            try:
                of_shard = store.manifest(reader, shard)
                if of_shard is not None and (inputs := made_from(of_shard, replaced)) != of_shard.inputs:
                    store.rewrite(reader, store.read(reader, shard), shard, inputs=inputs)
            except StoreError:  # damaged: it is made again by a run
                store.remove(reader, shard)
    store.rewrite(name, after)


def made_from(manifest: Manifest, replaced: Mapping[InputVersion, str]) -> tuple[InputVersion, ...]:
    """What a table counts as made from once contents are replaced."""
    return tuple(replace(read, content_sha256=replaced.get(read, read.content_sha256)) for read in manifest.inputs)


def _without(frame: pl.DataFrame, samples: pl.DataFrame, table: Table | None) -> pl.DataFrame | None:
    """A table without the samples; None where nobody knows its rows. One with a row per row of raw/samples keeps
    theirs, which say why they are empty."""
    key = next((name for name in ("sample_id", "source_row") if name in frame.columns), None)
    if key is None:
        return None
    is_removed = pl.col(key).is_in(samples[key].implode())
    say = emptied if table is None or table.taken_down is None else table.taken_down
    has_every_row = "source_row" in frame.columns if table is None else table.continues in (SAMPLES, REGISTERED_SHARDS)
    if say is emptied and not has_every_row:
        return frame.filter(~is_removed)
    said = say(frame).select(pl.all().name.prefix("after:"))
    return frame.hstack(said).select(
        pl.when(is_removed).then(f"after:{name}").otherwise(name).alias(name) for name in frame.columns
    )
