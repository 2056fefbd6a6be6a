"""In which shards a sample lies, by its id, URL or an image's sha256: one sorted array that is searched on disk.

`raw/lookup` of a pool is `keys.npy`, (K,) uint64 sorted: the first 44 bits of each id and hash (of a URL its sha256),
then the number of the shard. 8 bytes per key, up to four keys per sample. Two different names share 44 bits once in
10¹³, so the caller still compares the rows of the shard.
"""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.core.settings import shard_key
from curation_assets.core.table_names import LOOKUP, SAMPLES
from curation_assets.stores.columns import THREADS, each_in_threads, hex_column, read_columns
from curation_assets.stores.shard_store import ShardStore

FILE = "keys.npy"
SHARD_BITS = 20  # shards are numbered up to 999,999
_HEX_COLUMNS = ("sample_id", "image_sha256", "original_sha256")


def write_lookup(store: ShardStore, folder: Path, threads: int = THREADS) -> None:
    """Write `keys.npy` of all shards of raw/samples. Its time of change is that of the first read."""
    started = time.time_ns()
    paths = store.checked_paths(SAMPLES, shards) if (shards := store.partitions(SAMPLES)) else []
    parts = list(each_in_threads(_keys_of_shard, paths, threads))
    keys = np.concatenate([np.zeros(0, dtype=np.uint64), *parts])
    del parts
    keys.sort()
    np.save(folder / FILE, keys, allow_pickle=False)
    os.utime(folder / FILE, ns=(started, started))


def _keys_of_shard(path: Path) -> np.ndarray:
    rows = read_columns(path, ["url", *_HEX_COLUMNS])
    urls = b"".join([_url_key(url) for url in pl.Series(rows.column("url").drop_null()).to_list()])
    keys = [
        np.frombuffer(urls, dtype=">u8").astype(np.uint64),
        *(hex_column(rows.column(name))[:, 0] for name in _HEX_COLUMNS),
    ]
    return np.unique(_tagged(np.concatenate(keys), path.parent.name.removeprefix("shard=")))


def shards_of(store: ShardStore, pool: str, kind: str, identifier: str) -> list[str] | None:
    """Shards that may hold a sample, sorted; None where the pool has no lookup yet, and for keys, which it lacks.

    `kind`: sample_id, sha256, url or key. Shards that were written after the lookup are always among them.
    """
    if kind == "key":
        return None
    if store.manifest(LOOKUP) is None:
        return None
    path = store.checked_file(LOOKUP, FILE)
    key = int.from_bytes(_url_key(identifier), "big") if kind == "url" else int(identifier[:16], 16)
    low = key >> SHARD_BITS << SHARD_BITS
    keys = np.load(path, mmap_mode="r", allow_pickle=False)
    ends = np.array([low, low + (1 << SHARD_BITS) - 1], dtype=np.uint64)
    first, last = np.searchsorted(keys, ends[0], "left"), np.searchsorted(keys, ends[1], "right")
    found = {shard_key(pool, int(sample_key) & ((1 << SHARD_BITS) - 1)) for sample_key in keys[first:last]}
    written = path.stat().st_mtime_ns
    with os.scandir(store.asset_path(SAMPLES)) as folders:  # whose time of change is that of the last write
        names = [folder.name for folder in folders if folder.stat().st_mtime_ns >= written]
    found.update(name.removeprefix("shard=") for name in names if name.startswith("shard="))
    return sorted(shard for shard in found if store.table_path(SAMPLES, shard).is_file())


def _url_key(url: str) -> bytes:
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()[:8]


def _tagged(keys: np.ndarray, shard: str) -> np.ndarray:
    """(K,) keys with the shard's number in place of their last bits."""
    bits = np.uint64(SHARD_BITS)
    return keys >> bits << bits | np.uint64(int(shard.rsplit("-", 1)[1]))
