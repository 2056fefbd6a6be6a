"""One small index over all manifests of a pool, so that a plan reads two files and not one file per partition.

`index/tables.parquet` and `index/inputs.parquet` of a pool's work folder. `refresh_index` reads only manifests of files
that changed; `curate run` calls it at its end. Of a home in a bucket machines share what they read (`SHARED`).
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.stores.atomic import replacing
from curation_assets.stores.documents import save_frame
from curation_assets.stores.lease import brief_lock
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.parquet import UNREADABLE, is_whole, parquet_footer, read_parquet, write_sealed
from curation_assets.stores.shard_store import ShardStore

POOL = ""  # partition of a whole-pool table
LOCK = ".lock"

#: Grain: one row per stored table and partition.
TABLES_SCHEMA = pl.Schema(
    {
        "asset": pl.String,
        "partition": pl.String,
        "modified_ns": pl.Int64,  # the table's stamp: on a disk a time
        "content": pl.UInt64,  # first 16 hex digits of the content hash
        "code_version": pl.String,
        "config_hash": pl.String,
        "models": pl.String,  # JSON
        "row_count": pl.Int64,
        "seconds": pl.Float64,
    }
)
#: Grain: one row per stored table, partition and table that it read; contents of many shards are summed (mod 2^64).
INPUTS_SCHEMA = pl.Schema(
    {"asset": pl.String, "partition": pl.String, "input": pl.String, "content": pl.UInt64, "count": pl.Int64}
)
_MASK = 2**64 - 1


def short_hash(sha256: str) -> int:
    """First 64 bits of a hex digest."""
    return int(sha256[:16], 16)


def refresh_index(store: ShardStore, assets: Iterable[str]) -> None:
    """Bring the index of a pool up to date with what is stored. One process at a time does: its files are a pair."""
    with brief_lock(store.root / "index" / LOCK):
        _refresh_index(store, assets)


def _refresh_index(store: ShardStore, assets: Iterable[str]) -> None:
    folder = store.root / "index"
    stored = [(asset, key, stamp) for asset in assets for key, stamp in _stamps(store, asset)]
    current = pl.DataFrame(stored, schema={name: TABLES_SCHEMA[name] for name in _STATE}, orient="row")
    parts = [_still_true(*_read(folder), current)]
    shared = _read_shared(store)
    parts.append(_still_true(*shared, current.join(parts[0][0], on=_STATE, how="anti")))
    new: list[tuple[object, ...]] = []
    new_inputs: list[tuple[object, ...]] = []
    unknown = current.join(pl.concat([tables for tables, _ in parts]), on=_STATE, how="anti")
    for asset, key, stamp in unknown.iter_rows():
        manifest = store.manifest(asset, key or None)
        if manifest is not None:
            new.append(_row(manifest, stamp))
            new_inputs += _input_rows(manifest)
    tables = pl.concat([*(part[0] for part in parts), pl.DataFrame(new, schema=TABLES_SCHEMA, orient="row")])
    inputs = pl.concat([*(part[1] for part in parts), pl.DataFrame(new_inputs, schema=INPUTS_SCHEMA, orient="row")])
    write_index(folder, tables, inputs)
    if store.objects is not None and not tables.select(_STATE).sort(_STATE).equals(
        shared[0].select(_STATE).sort(_STATE)
    ):
        _share(store, tables, inputs)


def _still_true(tables: pl.DataFrame, inputs: pl.DataFrame, current: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of an index for what is stored now (columns of _STATE)."""
    kept = tables.join(current, on=_STATE, how="semi")
    return kept, inputs.join(kept, on=["asset", "partition"], how="semi")


_STATE = ["asset", "partition", "modified_ns"]


def _stamps(store: ShardStore, asset: str) -> Iterable[tuple[str, int]]:
    """Partition and stamp of all that is stored of an asset."""
    whole = store.stamp(asset)
    stamps = {POOL: whole} if whole is not None else {key: store.stamp(asset, key) for key in store.partitions(asset)}
    return [(key, stamp) for key, stamp in stamps.items() if stamp is not None]


# -- of a home in a bucket: what one machine read of the footers, for the others --------------------------------------

SHARED = "shared_index/tables.parquet"  # in a pool's work folder: the rows of both files, those of inputs as a list
_INPUT = ("input", "content", "count")


def _read_shared(store: ShardStore) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tables and inputs; empty for a home on a disk, and where there is none or a damaged one."""
    none = pl.DataFrame(schema=TABLES_SCHEMA), pl.DataFrame(schema=INPUTS_SCHEMA)
    if store.objects is None:
        return none
    path = store.root / SHARED
    store.objects.fetch(path)
    try:
        rows = read_parquet(path)
        tables = rows.select(TABLES_SCHEMA.names()).cast(dict(TABLES_SCHEMA))  # type: ignore[arg-type]
        listed = rows.select("asset", "partition", "inputs").filter(pl.col("inputs").list.len() > 0).explode("inputs")
        inputs = listed.unnest("inputs").select(INPUTS_SCHEMA.names()).cast(dict(INPUTS_SCHEMA))  # type: ignore[arg-type]
    except UNREADABLE:
        return none
    return tables, inputs


def _share(store: ShardStore, tables: pl.DataFrame, inputs: pl.DataFrame) -> None:
    """Put the rows as one object. Where another machine was first its rows stay: who lacks any reads the footers."""
    listed = inputs.group_by("asset", "partition").agg(pl.struct(*_INPUT).alias("inputs"))
    rows = tables.join(listed, on=["asset", "partition"], how="left").sort(_TABLE_ORDER)
    with contextlib.suppress(StoreError):
        save_frame(store.root / SHARED, rows)


def write_index(folder: Path, tables: pl.DataFrame, inputs: pl.DataFrame) -> None:
    """Both files. Texts are codes into sorted words, which the footer holds: a tenth of the time to read.

    The tables last: they tell which manifests are known, so what a kill between the two leaves is read again.
    """
    for name, frame, order in (("inputs", inputs, _INPUT_ORDER), ("tables", tables, _TABLE_ORDER)):
        texts = [column for column, kind in frame.schema.items() if kind == pl.String]
        words = {column: frame[column].unique().sort().to_list() for column in texts}
        coded = frame.with_columns(
            pl.col(text_column).cast(pl.Enum(words[text_column])).to_physical().cast(pl.UInt32) for text_column in texts
        )
        with replacing(folder / f"{name}.parquet") as temporary:
            write_sealed(coded.sort(order), temporary, {_WORDS: json.dumps(words)})


_TABLE_ORDER, _INPUT_ORDER = ("asset", "partition"), ("asset", "input", "partition")
_WORDS = "curation_index_words"


def _read_coded(path: Path) -> tuple[pl.DataFrame, dict[str, list[str]]] | None:
    """Codes and words; None where there is no index, a damaged one, or one of an older layout: it is made again."""
    if not path.is_file() or not is_whole(path):
        return None
    try:
        footer = parquet_footer(path)
        return (read_parquet(path), json.loads(footer[_WORDS])) if _WORDS in footer else None
    except (*UNREADABLE, ValueError):
        return None


def _read(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tables and inputs; both empty where one of them is not there, since tables tell what is known of inputs."""
    tables, inputs = (_read_coded(folder / f"{name}.parquet") for name in ("tables", "inputs"))
    if tables is None or inputs is None:
        return pl.DataFrame(schema=TABLES_SCHEMA), pl.DataFrame(schema=INPUTS_SCHEMA)
    return _decoded(*tables, TABLES_SCHEMA), _decoded(*inputs, INPUTS_SCHEMA)


def _decoded(coded: pl.DataFrame, words: Mapping[str, list[str]], schema: pl.Schema) -> pl.DataFrame:
    return coded.with_columns(
        pl.col(name).replace_strict(np.arange(len(listed)), listed, return_dtype=pl.String)
        for name, listed in words.items()
        if listed
    ).cast(dict(schema))  # type: ignore[arg-type]


def _row(manifest: Manifest, modified_ns: int) -> tuple[object, ...]:
    return (
        manifest.asset,
        manifest.partition or POOL,
        modified_ns,
        short_hash(manifest.content_sha256),
        manifest.code_version,
        manifest.config_hash,
        json.dumps([dict(model) for model in manifest.models], sort_keys=True),
        manifest.row_count,
        manifest.seconds,
    )


def _input_rows(manifest: Manifest) -> list[tuple[object, ...]]:
    sums: dict[str, list[int]] = {}
    for version in manifest.inputs:
        entry = sums.setdefault(version.asset, [0, 0])
        entry[0] = (entry[0] + short_hash(version.content_sha256)) & _MASK
        entry[1] += 1
    return [(manifest.asset, manifest.partition or POOL, name, *entry) for name, entry in sums.items()]


@dataclass(frozen=True)
class Words:
    """Texts that codes stand for."""

    texts: list[str]

    @cached_property
    def code_of(self) -> dict[str, int]:
        """Text → code."""
        return {text: code for code, text in enumerate(self.texts)}


@dataclass(frozen=True)
class StoredTable:
    """All partitions of one table as arrays over the shards of an `Index` (one entry for a whole-pool table)."""

    is_stored: np.ndarray  # (S,) bool
    content: np.ndarray  # (S,) uint64
    code_version: np.ndarray  # (S,) int64 codes into `words`, -1 where it is not there
    config_hash: np.ndarray
    models: np.ndarray
    row_count: np.ndarray  # (S,) int64
    seconds: np.ndarray  # (S,) float64
    words: dict[str, Words]  # column → texts of its codes
    inputs: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # name → contents, counts


@dataclass(frozen=True)
class Index:
    """What is stored of a pool, as arrays. `shards` are those that a plan is made for."""

    shards: list[str]
    tables: dict[str, StoredTable]

    @classmethod
    def read(
        cls, folder: Path, shards: list[str], trainings: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> "Index":
        """The index of a pool's work folder, seen from `shards`. Raises FileNotFoundError with what to do.

        `trainings`: tables whose partitions are no shards → their keys.
        """
        tables, inputs = (_read_coded(folder / f"{name}.parquet") for name in ("tables", "inputs"))
        if tables is None or inputs is None:
            raise FileNotFoundError(f"no index in {folder}; `curate plan {folder.parent.name} --refresh` writes it")
        position = {shard: number for number, shard in enumerate(shards)} | {POOL: 0}
        columns, texts = _arrays(tables[0]), tables[1]
        words = {name: Words(texts[name]) for name in ("code_version", "config_hash", "models")}
        own = {name: {key: number for number, key in enumerate(keys)} for name, keys in trainings.items()}
        stored_tables: dict[str, StoredTable] = {}
        for part in _runs(columns["asset"]):
            mine = {name: column[part] for name, column in columns.items()}
            name = texts["asset"][mine["asset"][0]]
            is_pool = texts["partition"][mine["partition"][0]] == POOL
            size = 1 if is_pool else len(own.get(name, shards))
            at = _indices(mine["partition"], texts["partition"], own.get(name, position))
            stored_tables[name] = _stored(mine, at, size, words)
        columns, texts = _arrays(inputs[0]), inputs[1]
        for part in _runs(columns["asset"], columns["input"]):
            name, read = (texts[column][columns[column][part.start]] for column in ("asset", "input"))
            if name in stored_tables:
                size = len(stored_tables[name].is_stored)
                at = _indices(columns["partition"][part], texts["partition"], own.get(name, position))
                of_part = [_spread(columns[column][part], at, size, 0) for column in ("content", "count")]
                stored_tables[name].inputs[read] = (of_part[0], of_part[1])
        return cls(shards, stored_tables)


def _arrays(frame: pl.DataFrame) -> dict[str, np.ndarray]:
    return {name: frame[name].to_numpy() for name in frame.columns}


def _indices(partitions: np.ndarray, texts: list[str], position: dict[str, int]) -> np.ndarray:
    """(rows,) number of each row's shard, -1 where a plan is not made for it."""
    indices = np.array([position.get(word, -1) for word in texts], dtype=np.int64)
    return indices[partitions] if len(indices) else indices


def _runs(*columns: np.ndarray) -> list[slice]:
    """Slices of equal values in columns (rows,) that are sorted by them."""
    if not len(columns[0]):
        return []
    is_new = np.ones(len(columns[0]), dtype=bool)
    is_new[1:] = np.any([codes[1:] != codes[:-1] for codes in columns], axis=0)
    starts = np.flatnonzero(is_new).tolist()
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(is_new)], strict=True)]


def _spread(values: np.ndarray, at: np.ndarray, size: int, empty: int) -> np.ndarray:
    """(size,) values at their positions; `empty` elsewhere."""
    spread = np.full(size, empty, dtype=values.dtype)
    spread[at[at >= 0]] = values[at >= 0]
    return spread


def _stored(columns: dict[str, np.ndarray], at: np.ndarray, size: int, words: dict[str, Words]) -> StoredTable:
    codes: dict[str, Any] = {name: _spread(columns[name].astype(np.int64), at, size, -1) for name in words}
    return StoredTable(
        is_stored=_spread(np.ones(len(at), dtype=bool), at, size, 0),
        content=_spread(columns["content"], at, size, 0),
        row_count=_spread(columns["row_count"], at, size, 0),
        seconds=_spread(columns["seconds"], at, size, 0),
        words=words,
        **codes,
    )
