"""Subset files: which samples were kept, in the format that DataComp's tools read."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.numeric.identity import UID_DTYPE, pack_uids, unpack_uids
from curation_assets.stores.atomic import replacing, write_text_atomically
from curation_assets.stores.columns import uid_texts


def write_subset_npy(path: Path, sample_ids: Sequence[str]) -> int:
    """DataComp's `.npy` (u8,u8, sorted as unsigned pairs). An id given m times is written m times, which the
    resharder takes as m copies of the sample (docs/formulas.md §3.4). Returns the number of entries.
    """
    return write_packed_npy(path, pack_uids(sample_ids))


def write_packed_npy(path: Path, packed: np.ndarray) -> int:
    """The same of ids that `pack_uids` or `sorted_uids` gave."""
    with replacing(path) as temporary:
        np.save(temporary.with_suffix(".npy"), packed, allow_pickle=False)
    return len(packed)


def read_subset_npy(path: Path) -> list[str]:
    """The ids of a subset file in file order, repeats kept. Raises ValueError for another dtype or no sorting."""
    packed = np.load(path, allow_pickle=False)
    if packed.dtype != UID_DTYPE or packed.ndim != 1:
        raise ValueError(f"{path}: expected one axis of dtype u8,u8, got {packed.dtype} with shape {packed.shape}")
    if not np.array_equal(packed, packed[np.lexsort((packed["f1"], packed["f0"]))]):
        raise ValueError(f"{path}: ids must be sorted as unsigned pairs; resharders search them by bisection")
    return unpack_uids(packed)


def write_subset_parquet(path: Path, sample_ids: Sequence[str]) -> int:
    """The same subset as a table. Grain: one row per sample, sorted; columns sample_id, multiplicity (≥ 1)."""
    return write_packed_parquet(path, pack_uids(sample_ids))  # refuses malformed ids


def write_packed_parquet(path: Path, packed: np.ndarray) -> int:
    """The same of ids that `pack_uids` or `sorted_uids` gave. Returns the number of samples."""
    is_first = np.ones(len(packed), dtype=bool)
    is_first[1:] = packed[1:] != packed[:-1]
    starts = np.flatnonzero(is_first)
    multiplicity = np.diff(starts, append=len(packed)).astype(np.int64)
    ids = uid_texts(packed["f0"][starts], packed["f1"][starts])
    frame = pl.DataFrame({"sample_id": ids, "multiplicity": multiplicity})
    with replacing(path) as temporary:
        frame.write_parquet(temporary, compression="zstd")
    return frame.height


def read_subset_parquet(path: Path) -> list[str]:
    """The ids of `write_subset_parquet`, sorted, each as often as its multiplicity."""
    frame = pl.read_parquet(path)
    repeated = frame.select(pl.col("sample_id").repeat_by("multiplicity").explode())
    return repeated["sample_id"].to_list()


def write_key_list(path: Path, keys: pl.DataFrame) -> int:
    """Allow-list for training on the tars as they are: lines `tar<TAB>key`, sorted. Returns the number of keys.

    `keys`: columns tar and key, a row per entry, in any order. A tab, line break or backslash of a name is written \\t,
    \\n, \\r or \\\\: `read_key_list` turns it back.
    """
    cells = keys.select("tar", "key").sort("tar", "key").select(pl.all().pipe(_one_cell))
    text = cells.write_csv(include_header=False, separator="\t", quote_style="never")
    write_text_atomically(path, text)
    return keys.height


def read_key_list(path: Path) -> list[tuple[str, str]]:
    """(tar, key) of `write_key_list`, in its order. Raises ValueError for a line that is not `tar<TAB>key`."""
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), 1):
        tar, tab, key = line.removesuffix("\r").partition("\t")
        if not (tar and tab and key):
            raise ValueError(f"{path}, line {number}: expected tar<TAB>key, got {line!r}")
        entries.append((_as_named(tar), _as_named(key)))
    return entries


#: What stands in a cell for a character that would end it; the backslash is replaced first.
_MARKS = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _one_cell(name: pl.Expr) -> pl.Expr:
    for character, mark in _MARKS.items():
        name = name.str.replace_all(character, mark, literal=True)
    return name


def _as_named(cell: str) -> str:
    back = {mark: character for character, mark in _MARKS.items()}
    return re.sub(r"\\[\\tnr]", lambda mark: back[mark[0]], cell)
