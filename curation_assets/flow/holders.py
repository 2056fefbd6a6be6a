"""The tables and folders of a pool: rows of samples leave those of shards; what is made of all rows is made again."""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import (
    CANARY,
    CONTRAST_PAIRS,
    DUPLICATES,
    REGISTERED_SHARDS,
    SAMPLES,
    stage_of,
)
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Takedown, files_in
from curation_assets.flow.table import Table, Tables
from curation_assets.flow.table_checks import folder_checks, table_checks
from curation_assets.flow.taken_down import rewrite_fit, take_down_rows
from curation_assets.numeric.identity import UID_DTYPE
from curation_assets.selection.rows import UID, uid_columns
from curation_assets.stores.damage import Check
from curation_assets.stores.denylist import TAKEDOWN
from curation_assets.stores.parquet import UNREADABLE, scan_parquet
from curation_assets.stores.shard_store import BLOCKED, CorruptTableError, ShardStore

_REMEMBERING = (DUPLICATES, CANARY)


class StoredTables(Holder):
    """Tables and folders of the store, declared or not."""

    turn = 1

    def artefacts(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterator[Path]:
        store = ctx.store
        for name in touched_tables(tables, takedown.holding):
            if tables[name].grain == "shard":
                folders = [store.table_path(name, shard).parent for shard in takedown.shards]
            else:
                folder = store.asset_path(name)
                folders = [folder, *folder.parent.glob(f".{folder.name}.version-*")]
            yield from (path for folder in folders for path in files_in(folder))

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        store = ctx.store
        with ctx.progress.task(f"takedown of {takedown.pool}: shards", len(takedown.shards)) as advance:
            take_down_rows(store, tables, takedown.samples, advance)
        for name, table in tables.items():
            if name not in takedown.holding:
                _take_out_of_fit(ctx, tables, table, takedown.sample_ids)
        for name in made_of_all_rows(tables, takedown.holding):
            store.remove(name)
        for name, files in orphans(ctx, tables).items():
            # neither has an id or a text by which it could be found: vectors, and pictures of a report
            is_without = name == CONTRAST_PAIRS or STAGES[stage_of(name)].is_evaluation
            holds = takedown.needles.matches_in if store.partitions(name) else partial(_holds_any, takedown)
            if is_without or any(map(holds, files)):
                store.remove(name)
        store.remove_unfinished(takedown.shards)

    def of_shard(self, ctx: PoolContext, shard: str) -> Iterator[Path]:
        patterns = (f"*/*/shard={shard}", f"{BLOCKED}/*/*/{shard}.json", f"*/.*.unfinished/{shard}")
        return (path for pattern in patterns for path in ctx.store.root.glob(pattern))

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterator[Path]:
        return (path for files in orphans(ctx, tables).values() for path in files)

    def certified(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> dict[str, Any]:
        return {"fits_kept": kept_fits(tables, takedown.holding)}

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterator[Check]:
        yield from table_checks(ctx, tables)
        yield from folder_checks(ctx, tables)


def frozen_holding(ctx: PoolContext, tables: Tables, sample_ids: Iterable[str]) -> list[str]:
    """Stored frozen tables that hold something of one of the samples; damaged ones may."""
    ids, found = set(sample_ids), []
    for name, table in tables.items():
        if table.fit is not None and table.fit.holds_any is not None and _is_stored(ctx.store, name):
            try:
                is_held = table.fit.holds_any(ctx, ids)
            except (OSError, StoreError):
                is_held = bool(ids)
            if is_held:
                found.append(name)
    return found


def touched_tables(tables: Tables, holding: Collection[str] = ()) -> list[str]:
    """Tables that may hold something of a sample: all that rest on registered rows, but for frozen fits that are not
    in `holding`.

    DUPLICATES stays too: it has ids only, and remembers which shard came first. So do the canary's scores, with the
    builds that no longer exist.
    """
    resting: set[str] = {REGISTERED_SHARDS}
    for name, table in tables.items():  # inputs first
        if resting.intersection(table.inputs):
            resting.add(name)
    kept = {name for name, table in tables.items() if table.is_frozen and name not in holding} | {*_REMEMBERING}
    return [name for name in tables if name in resting and name not in kept]


def made_of_all_rows(tables: Tables, holding: Collection[str] = ()) -> list[str]:
    """The `touched_tables` whose rows depend on others: removed whole, made again without the samples."""
    return [name for name in touched_tables(tables, holding) if tables[name].grain != "shard"]


def _take_out_of_fit(ctx: PoolContext, tables: Tables, table: Table, sample_ids: Collection[str]) -> None:
    """Remove ids of samples from a stored fit. A damaged one, which may hold some, is removed whole."""
    if table.fit is None or table.fit.without is None or not _is_stored(ctx.store, table.name):
        return
    try:
        after = table.fit.without(ctx, sample_ids)
    except StoreError:
        ctx.store.remove(table.name)
        return
    if after is not None:
        rewrite_fit(ctx.store, tables, table.name, after)


def kept_fits(tables: Tables, holding: Collection[str] = ()) -> list[str]:
    """Frozen fits that rest on registered rows: numbers and weights, no sample. Not those in `holding`, nor what rests
    on a model of them (a folder) and was fitted again; rows, as those that change, are no reason to fit again.
    """
    touched, again = set(touched_tables(tables, holding)), set(holding)
    models = {name for name in again if tables[name].is_folder}
    for name, table in tables.items():  # inputs first
        if models.intersection(table.inputs):
            models.add(name)
    again |= models
    fits = (name for name, table in tables.items() if table.is_frozen and touched.intersection(table.inputs))
    return sorted(name for name in fits if name not in again)


def drop_previous_versions(ctx: PoolContext, tables: Tables) -> None:
    """Delete what the store keeps of folders such as the report, and frozen tables that hold samples: a run after
    `takedown add` leaves samples there. The next run makes these tables again.
    """
    if ctx.store.partitions(SAMPLES):
        emptied = ctx.store.scan(SAMPLES).filter(pl.col("reason") == TAKEDOWN).select("sample_id").collect()
        for name in frozen_holding(ctx, tables, emptied["sample_id"]):
            ctx.store.remove(name)
    for name in touched_tables(tables):
        ctx.store.remove_previous(name)


def orphans(ctx: PoolContext, tables: Tables) -> dict[str, list[Path]]:
    """Stored tables that the pool no longer declares, such as a policy's that was deleted, with all their files.

    Nothing would make them again without a sample.
    """
    files: dict[str, list[Path]] = {}
    for stage in STAGES:
        for folder in sorted((ctx.store.root / stage).glob("*")):
            is_version = folder.name.startswith(".") and ".version-" in folder.name
            if folder.name.startswith(".") and not is_version:
                continue  # drafts and saved rows, which the purge removes
            name = f"{stage}/{folder.name.removeprefix('.').partition('.version-')[0]}"
            if name not in tables and name not in _REMEMBERING:
                files.setdefault(name, []).extend(files_in(folder.resolve()))
    return files


def _holds_any(takedown: Takedown, path: Path) -> bool:
    """Whether a file holds one of the samples: its id in a table or a subset, or what must be found nowhere."""
    ids = pl.LazyFrame({"sample_id": takedown.sample_ids}).select("sample_id", *uid_columns())
    try:
        rows = pl.LazyFrame()
        if path.suffix == ".npy" and (subset := np.load(path, allow_pickle=False)).dtype == UID_DTYPE:
            rows = pl.LazyFrame({"uid_high": subset["f0"], "uid_low": subset["f1"]})
        elif path.suffix == ".parquet":
            rows = scan_parquet(path)
        columns = rows.collect_schema().names()
        keys = [key for key in (["sample_id"], UID) if {*key} <= {*columns}]
        if any(rows.join(ids, on=key, how="semi").collect().height for key in keys):
            return True
    except (*UNREADABLE, ValueError):
        return True  # it may
    return bool(takedown.needles.matches_in(path))


def stored_names(ctx: PoolContext, tables: Tables) -> list[str]:
    """Declared tables that are stored, damaged ones included: they may hold a sample."""
    return [name for name in tables if is_there(ctx, name)]


def to_be_made_again(ctx: PoolContext, tables: Tables, takedown: Takedown) -> list[str]:
    """Tables that were stored before a takedown and are to be looked at again after it, in flow order: those made of
    all rows, those that it removed, and what rests on them; and registered rows, since it changed the pool's source.

    Only those whose inputs are stored or made with them.
    """
    again = {*made_of_all_rows(tables, takedown.holding), *_REMEMBERING}
    again |= {name for name in takedown.tables if name in tables and not is_there(ctx, name)}
    for name, table in tables.items():  # inputs first
        if again.intersection(table.inputs):
            again.add(name)
    again = {*again, REGISTERED_SHARDS} & set(takedown.tables)
    found: list[str] = []
    for name, table in tables.items():
        if name in again and all(one in found or is_there(ctx, one) for one in table.inputs):
            found.append(name)
    return found


def is_there(ctx: PoolContext, name: str) -> bool:
    """Whether something of a table or folder is stored, damaged or not."""
    return bool(ctx.store.partitions(name)) or _is_stored(ctx.store, name)


def _is_stored(store: ShardStore, name: str) -> bool:
    """Whether there is a whole-pool table or folder, damaged ones included: they may hold a sample."""
    try:
        return store.manifest(name) is not None
    except CorruptTableError:
        return True
