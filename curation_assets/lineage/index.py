"""One small index over all manifests of a pool, so that a plan asks two files and not one file per partition.

`index/tables.parquet` and `index/inputs.parquet` of a pool's work folder. `refresh_index` reads only manifests of files
that changed; `curate run` calls it at its end.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.stores.atomic import replacing
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.shard_store import ShardStore

POOL = ""  # partition of a whole-pool table

#: Grain: one row per stored table and partition.
TABLES_SCHEMA = pl.Schema(
    {
        "asset": pl.String,
        "partition": pl.String,
        "modified_ns": pl.Int64,
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
    """Bring the index of a pool up to date with what is stored."""
    folder = store.root / "index"
    known = _read(folder / "tables.parquet", TABLES_SCHEMA)
    known_inputs = _read(folder / "inputs.parquet", INPUTS_SCHEMA)
    times = known.select("asset", "partition", "modified_ns").iter_rows()
    seen = {(asset, key): modified for asset, key, modified in times}
    new: list[tuple[object, ...]] = []
    new_inputs: list[tuple[object, ...]] = []
    current: list[tuple[str, str, int]] = []
    for asset in assets:
        for key, path in _files(store, asset):
            modified = path.lstat().st_mtime_ns
            current.append((asset, key, modified))
            if seen.get((asset, key)) != modified:
                manifest = store.manifest(asset, key or None)
                if manifest is not None:
                    new.append(_row(manifest, modified))
                    new_inputs += _input_rows(manifest)
    keys = pl.DataFrame(
        current, schema={name: TABLES_SCHEMA[name] for name in ("asset", "partition", "modified_ns")}, orient="row"
    )
    kept = known.join(keys, on=["asset", "partition", "modified_ns"], how="semi")
    kept_inputs = known_inputs.join(kept, on=["asset", "partition"], how="semi")
    write_index(
        folder,
        pl.concat([kept, pl.DataFrame(new, schema=TABLES_SCHEMA, orient="row")]),
        pl.concat([kept_inputs, pl.DataFrame(new_inputs, schema=INPUTS_SCHEMA, orient="row")]),
    )


def write_index(folder: Path, tables: pl.DataFrame, inputs: pl.DataFrame) -> None:
    """Both files, texts as dictionaries."""
    partitions = pl.Enum(pl.concat([tables["partition"], inputs["partition"]]).unique().sort().to_list() or [POOL])
    for name, frame in (("tables", tables), ("inputs", inputs)):
        texts = [column for column, kind in frame.schema.items() if kind == pl.String and column != "partition"]
        coded = frame.with_columns(pl.col("partition").cast(partitions), pl.col(texts).cast(pl.Categorical))
        with replacing(folder / f"{name}.parquet") as temporary:
            coded.sort("asset", "partition").write_parquet(temporary, compression="zstd")


def _read(path: Path, schema: pl.Schema) -> pl.DataFrame:
    if not path.is_file():
        return pl.DataFrame(schema=schema)
    return pl.read_parquet(path).cast(dict(schema))  # type: ignore[arg-type]


def _files(store: ShardStore, asset: str) -> Iterable[tuple[str, Path]]:
    folder = store.asset_path(asset)
    if folder.is_symlink() or store.table_path(asset).is_file():
        yield POOL, folder if folder.is_symlink() else store.table_path(asset)
    else:
        for key in store.partitions(asset):
            yield key, store.table_path(asset, key)


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
    for one in manifest.inputs:
        entry = sums.setdefault(one.asset, [0, 0])
        entry[0] = (entry[0] + short_hash(one.content_sha256)) & _MASK
        entry[1] += 1
    return [(manifest.asset, manifest.partition or POOL, name, *entry) for name, entry in sums.items()]


@dataclass(frozen=True)
class StoredTable:
    """All partitions of one table as arrays over the shards of an `Index` (one entry for a whole-pool table)."""

    is_there: np.ndarray  # (S,) bool
    content: np.ndarray  # (S,) uint64
    code_version: np.ndarray  # (S,) int32 codes into `words`
    config_hash: np.ndarray
    models: np.ndarray
    row_count: np.ndarray  # (S,) int64
    seconds: np.ndarray  # (S,) float64
    words: dict[str, list[str]]  # column → texts of its codes
    inputs: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # name → contents, counts

    def differs(self, column: str, word: str | np.ndarray) -> np.ndarray:
        """(S,) bool: stored partitions whose text in a column is another."""
        codes = getattr(self, column)
        place = {text: code for code, text in enumerate(self.words[column])}
        wanted = place.get(word, -1) if isinstance(word, str) else np.array([place.get(one, -1) for one in word])
        return self.is_there & (codes != wanted)


@dataclass(frozen=True)
class Index:
    """What is stored of a pool, as arrays. `shards` are those that a plan is made for."""

    shards: list[str]
    tables: dict[str, StoredTable]

    @classmethod
    def read(cls, folder: Path, shards: list[str]) -> "Index":
        """The index of a pool's work folder, seen from `shards`. Raises FileNotFoundError with what to do."""
        if not (folder / "tables.parquet").is_file():
            raise FileNotFoundError(f"no index in {folder}; `curate run` writes it, or `curate plan --refresh`")
        tables, inputs = (pl.read_parquet(folder / f"{name}.parquet") for name in ("tables", "inputs"))
        place = np.full(len(tables["partition"].dtype.categories), -1, dtype=np.int64)  # type: ignore[attr-defined]
        position = {shard: number for number, shard in enumerate(shards)}
        for code, word in enumerate(tables["partition"].dtype.categories.to_list()):  # type: ignore[attr-defined]
            place[code] = position.get(word, 0 if word == POOL else -1)
        parts = inputs.partition_by("asset", as_dict=True)
        found = {}
        for (name,), part in tables.partition_by("asset", as_dict=True).items():
            is_pool = part["partition"][0] == POOL
            size = 1 if is_pool else len(shards)
            stored = _stored(part, place, size)
            for (read,), rows in parts.get((name,), inputs.clear()).partition_by("input", as_dict=True).items():
                at = place[rows["partition"].to_physical().to_numpy()]
                contents, counts = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.int64)
                contents[at[at >= 0]] = rows["content"].to_numpy()[at >= 0]
                counts[at[at >= 0]] = rows["count"].to_numpy()[at >= 0]
                stored.inputs[str(read)] = (contents, counts)
            found[str(name)] = stored
        return cls(shards, found)


def _stored(part: pl.DataFrame, place: np.ndarray, size: int) -> StoredTable:
    at = place[part["partition"].to_physical().to_numpy()]
    here = at >= 0
    is_there = np.zeros(size, dtype=bool)
    is_there[at[here]] = True
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, list[str]] = {}
    for name in ("content", "row_count", "seconds"):
        values = part[name].to_numpy()
        arrays[name] = np.zeros(size, dtype=values.dtype)
        arrays[name][at[here]] = values[here]
    for name in ("code_version", "config_hash", "models"):
        distinct = part[name].cast(pl.String).unique().sort().to_list()
        codes = part[name].cast(pl.Enum(distinct)).to_physical().cast(pl.Int32).to_numpy()
        arrays[name] = np.full(size, -1, dtype=np.int32)
        arrays[name][at[here]] = codes[here]
        words[name] = distinct
    return StoredTable(
        is_there=is_there,
        content=arrays["content"],
        code_version=arrays["code_version"],
        config_hash=arrays["config_hash"],
        models=arrays["models"],
        row_count=arrays["row_count"],
        seconds=arrays["seconds"],
        words=words,
    )
