"""In which shards a sample lies, by its id, URL or an image's sha256: one sorted array that is searched on disk.

`raw/lookup` of a pool is `keys.npy`, (K,) uint64 sorted: the first 44 bits of each id and hash (of a URL the sha256 of
its one form), then the number of the shard. 8 bytes per key, up to four keys per sample. Two different names share 44
bits once in 10¹³, so the caller still compares the rows of the shard. Where a number takes more than 20 bits, the file
is `keys_BITS.npy`, with as many bits less of each id. It is sorted on disk: memory does not grow with the pool.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from curation_assets.core.settings import shard_key, shard_number
from curation_assets.core.table_names import LOOKUP, SAMPLES
from curation_assets.stores.columns import hex_column
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.pool_queries import open_whole_pool
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.web_addresses import canonical_url

VERSION = "2"  # bump when a key is another
FILE, WIDE_FILE = "keys.npy", "keys_{}.npy"
SHARD_BITS = 20  # of a shard's number in `keys.npy`
AT_ONCE = 1 << 20  # keys that are merged or written
_HEX_COLUMNS = ("sample_id", "image_sha256", "original_sha256")


def write_lookup(store: ShardStore, folder: Path) -> None:
    """Write the file of all shards of raw/samples. Its time of change is that of the first read.

    Where only shards came since it was last written, their keys are merged into it; else DuckDB sorts those of all.
    """
    started = time.time_ns()
    shards = store.partitions(SAMPLES)
    bits = max([SHARD_BITS, *(shard_number(shard).bit_length() for shard in shards)])
    name = FILE if bits == SHARD_BITS else WIDE_FILE.format(bits)
    held = _held_shards(store, name)
    paths = store.checked_paths(SAMPLES, came) if (came := [one for one in shards if one not in held]) else []
    parts = (_keys_of_shard(bits, path) for path in paths)
    path = folder / name
    if held:
        before = np.load(store.checked_file(LOOKUP, name), mmap_mode="r", allow_pickle=False)
        more = np.sort(np.concatenate([*parts, np.zeros(0, dtype=np.uint64)]))
        _write(path, len(before) + len(more), _merged(before, more))
    else:
        with open_whole_pool(store, []) as connection:
            connection.execute("create table keys (key ubigint)")
            for part in parts:
                connection.from_arrow(pa.table({"key": part})).insert_into("keys")
            ((count,),) = connection.sql("select count(*) from keys").fetchall()
            sorted_keys = connection.sql("select key from keys order by key").to_arrow_reader(AT_ONCE)
            _write(path, count, (batch.column(0).to_numpy() for batch in sorted_keys))
    os.utime(path, ns=(started, started))


def _held_shards(store: ShardStore, name: str) -> set[str]:
    """Shards whose keys the file in force has, as they are now; none where one of them is another now, or went."""
    manifest = store.manifest(LOOKUP)
    if manifest is None or manifest.code_version != VERSION or name not in manifest.files:
        return set()
    read = manifest.contents_read
    is_same = all(store.content(*key) == content for key, content in read.items())
    return {shard for _, shard in read if shard is not None} if is_same else set()


def _merged(before: np.ndarray, more: np.ndarray) -> Iterator[np.ndarray]:
    """Two sorted arrays as one, part by part."""
    for start in range(0, len(before), AT_ONCE):
        part = before[start : start + AT_ONCE]
        end = int(np.searchsorted(more, part[-1], side="right"))
        yield np.sort(np.concatenate([part, more[:end]]), kind="stable")
        more = more[end:]
    yield more


def _write(path: Path, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write `count` uint64, part by part: what numpy.save makes of all."""
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint64)), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            part.tofile(file)


def _keys_of_shard(bits: int, path: Path) -> np.ndarray:
    rows = read_parquet(path, ["url", *_HEX_COLUMNS])
    urls = b"".join([_url_key(url) for url in rows["url"].drop_nulls().to_list()])
    keys = [
        np.frombuffer(urls, dtype=">u8").astype(np.uint64),
        *(hex_column(rows[name])[:, 0] for name in _HEX_COLUMNS),
    ]
    number = shard_number(path.parent.name.removeprefix("shard="))
    return np.unique(np.concatenate(keys) >> np.uint64(bits) << np.uint64(bits) | np.uint64(number))


def shards_of(store: ShardStore, pool: str, kind: str, identifier: str) -> list[str] | None:
    """Shards that may hold a sample, sorted; None where the pool has no lookup yet, and for keys, which it lacks.

    `kind`: sample_id, sha256, url or key. Shards that were written after the lookup are always among them.
    """
    if kind == "key":
        return None
    manifest = store.manifest(LOOKUP)
    if manifest is None:
        return None
    (name,) = manifest.files
    bits = SHARD_BITS if name == FILE else int(name.removeprefix("keys_").removesuffix(".npy"))
    path = store.checked_file(LOOKUP, name)
    # version 1 had URLs as they are
    sought = [_url_key(identifier), _key(identifier)] if kind == "url" else [bytes.fromhex(identifier[:16])]
    keys, found = np.load(path, mmap_mode="r", allow_pickle=False), set[str]()
    for one in sought:
        low = int.from_bytes(one, "big") >> bits << bits
        ends = np.array([low, low + (1 << bits) - 1], dtype=np.uint64)
        first, last = np.searchsorted(keys, ends[0], "left"), np.searchsorted(keys, ends[1], "right")
        found |= {shard_key(pool, int(sample_key) & ((1 << bits) - 1)) for sample_key in keys[first:last]}
    written = path.stat().st_mtime_ns
    with os.scandir(store.asset_path(SAMPLES)) as folders:  # whose time of change is that of the last write
        names = [folder.name for folder in folders if folder.stat().st_mtime_ns >= written]
    found.update(name.removeprefix("shard=") for name in names if name.startswith("shard="))
    return sorted(shard for shard in found if store.table_path(SAMPLES, shard).is_file())


def _url_key(url: str) -> bytes:
    with contextlib.suppress(ValueError):
        url = canonical_url(url)
    return _key(url)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
