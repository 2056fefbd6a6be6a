"""Subset files: which samples were kept, in the format that DataComp's tools read."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.numeric.identity import UID_DTYPE, as_pairs, pack_uids, sample_id_from, sorted_uids
from curation_assets.stores.arrays import load_npy
from curation_assets.stores.atomic import replacing
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import parquet_rows, scan_parquet, write_as_frame
from curation_assets.stores.text_tables import each_line, read_parts

IDS_AT_ONCE = 1 << 18  # that are texts
TEXT_ROWS = 1 << 16  # of a file whose ids are Python's texts
ID_COLUMNS = ("sample_id", "uid")
ID_SUFFIXES = (".npy", ".parquet", ".csv", ".tsv", ".jsonl", ".txt")


def packed_ids(path: Path) -> np.ndarray:
    """The ids of a file that lists samples as sorted u8,u8, 16 bytes an entry, each as often as it is listed (or as its
    `multiplicity` says).

    A .npy is DataComp's u8,u8, sorted, or of texts; a .parquet, .csv, .tsv or .jsonl has a column sample_id (or uid),
    and perhaps multiplicity; a .txt has an id per line. Ids may be in upper case, with the dashes of a UUID, and in
    Parquet 16 bytes. Raises ValueError that names the first cell that is none, FileNotFoundError for no file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix.lower() == ".npy" and _is_packed(path):
        packed = load_npy(path).astype(UID_DTYPE, copy=False)
        _check_sorted(path, packed)
        return packed
    parts = (pack_uids(ids).view(np.uint64).reshape(-1, 2) for ids in _ids_in_parts(path, path.suffix.lower()))
    return sorted_uids(np.concatenate([np.zeros((0, 2), dtype=np.uint64), *parts]))


def _ids_in_parts(path: Path, suffix: str) -> Iterator[list[str]]:
    """The ids of a file, in any order."""
    if suffix == ".npy":
        texts = np.load(path, mmap_mode="r", allow_pickle=False)
        cells = (
            cell for start in range(0, len(texts), TEXT_ROWS) for cell in texts[start : start + TEXT_ROWS].tolist()
        )
        yield from _checked_in_parts(path, "entry", enumerate(cells))
    elif suffix == ".txt":
        yield from _checked_in_parts(path, "line", enumerate(each_line(path), 1))
    elif suffix in ID_SUFFIXES:
        first = 0
        for rows in read_parts(path, suffix):
            yield _ids_of_table(path, rows, first)
            first += rows.height
    else:
        raise ValueError(f"{path}: ids are read from {', '.join(ID_SUFFIXES)}")


def _is_packed(path: Path) -> bool:
    """Whether a .npy is one axis of u8,u8, and not of texts. Raises ValueError for anything else."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        array = None
    array = array if isinstance(array, np.ndarray) else load_npy(path)
    if array.ndim == 1 and array.dtype.kind in "US":
        return False
    if array.ndim != 1 or array.dtype.newbyteorder("<") != UID_DTYPE:
        raise ValueError(f"{path}: expected one axis of dtype u8,u8, got {array.dtype} with shape {array.shape}")
    return True


def _check_sorted(path: Path, packed: np.ndarray) -> None:
    high, low = packed["f0"], packed["f1"]
    if not ((high[:-1] < high[1:]) | ((high[:-1] == high[1:]) & (low[:-1] <= low[1:]))).all():
        raise ValueError(f"{path}: ids must be sorted as unsigned pairs; resharders search them by bisection")


def listed_samples(path: Path) -> Iterator[pl.DataFrame]:
    """Each sample that a file lists (sample_id) and how often (multiplicity), sorted. Raises as `packed_ids`."""
    return counted_ids(packed_ids(path))


def distinct_ids(path: Path) -> np.ndarray:
    """The different ids of a file as sorted texts of 16 bytes (`as_pairs`). Raises as `packed_ids`."""
    packed = packed_ids(path)
    return np.unique(as_pairs(packed["f0"], packed["f1"]))


def write_sorted_subset(npy: Path, parquet: Path, packed: np.ndarray) -> int:
    """Write a subset twice, from sorted u8,u8. Returns the number of entries.

    `npy`: DataComp's (u8,u8, sorted as unsigned pairs). An id given m times is written m times, which the resharder
    takes as m copies of the sample (formulas.md §3.4). `parquet`: one row per sample, sorted; columns sample_id,
    multiplicity (≥ 1), with the row groups that polars gives a frame of all rows.
    """
    with replacing(npy) as temporary:
        np.save(temporary, packed)
    schema = pl.Schema({"sample_id": pl.String, "multiplicity": pl.Int64})
    with replacing(parquet) as temporary:
        write_as_frame(temporary, counted_ids(packed), schema, len(_firsts(packed)))
    return len(packed)


def lists_subset(path: Path, packed: np.ndarray) -> bool:
    """Whether a subset's table has the samples and multiplicities of sorted u8,u8, and nothing else."""
    listed, start = scan_parquet(path), 0
    for counted in counted_ids(packed):
        if not listed.slice(start, counted.height).collect().equals(counted):
            return False
        start += counted.height
    return parquet_rows(path) == start


def counted_ids(packed: np.ndarray) -> Iterator[pl.DataFrame]:
    """Sorted u8,u8 → each id once (sample_id) and how often it is there (multiplicity), sorted, some at a time."""
    firsts = _firsts(packed)
    times = np.diff(firsts, append=len(packed))
    for start in range(0, max(1, len(firsts)), IDS_AT_ONCE):
        ids = packed[firsts[start : start + IDS_AT_ONCE]]
        multiplicity = pl.Series("multiplicity", times[start : start + IDS_AT_ONCE], dtype=pl.Int64)
        yield pl.DataFrame([uid_texts(ids["f0"], ids["f1"]), multiplicity])


def _firsts(packed: np.ndarray) -> np.ndarray:
    """Where each different id of sorted u8,u8 begins."""
    return np.flatnonzero(np.append(np.full(min(1, len(packed)), True), packed[1:] != packed[:-1]))


def _ids_of_table(path: Path, table: pl.DataFrame, first: int = 0) -> list[str]:
    """`first`: number of the table's first row in the file."""
    name = next((name for name in ID_COLUMNS if name in table.columns), None)
    if name is None:
        raise ValueError(f"{path}: expected a column sample_id (or uid), got {table.columns}")
    ids = _checked(path, f"{name} of row", enumerate(table[name].to_list(), first))
    if "multiplicity" in table.columns:
        given = table["multiplicity"]
        numbers = given if not given.dtype.is_nested() else pl.Series([None] * len(ids))
        counts = numbers.cast(pl.Float64, strict=False).fill_nan(None)
        is_bad = counts.is_null() | (counts < 1) | (counts.floor() != counts) | counts.is_infinite()
        if is_bad.any():
            row = int(is_bad.arg_max() or 0)
            raise ValueError(
                f"{path}: multiplicity must be whole numbers of at least 1, got {given[row]!r} in row {first + row}"
            )
        ids = np.repeat(np.array(ids, dtype=object), counts.cast(pl.Int64).to_numpy()).tolist()
    return ids


def _checked_in_parts(path: Path, place: str, cells: Iterator[tuple[int, object]]) -> Iterator[list[str]]:
    while part := list(itertools.islice(cells, TEXT_ROWS)):
        yield _checked(path, place, part)


def _checked(path: Path, place: str, cells: Iterable[tuple[int, object]]) -> list[str]:
    ids = []
    for number, cell in cells:
        sample_id = sample_id_from(cell)
        if sample_id is None:
            raise ValueError(f"{path}: {place} {number} must be 32 hex digits, as sample_ids are, got {cell!r}")
        ids.append(sample_id)
    return ids


def write_keys(path: Path, parts: Iterable[pl.DataFrame]) -> int:
    """Allow-list for training on the tars as they are: lines `tar<TAB>key`. Returns the number of keys.

    `parts`: columns tar and key, a row per entry.
    """
    count = 0
    with replacing(path) as temporary, temporary.open("wb") as file:
        for keys in parts:
            file.write(key_lines(keys))
            count += keys.height
    return count


def key_lines(keys: pl.DataFrame) -> bytes:
    """Lines of an allow-list, of columns tar and key. A tab, line break or backslash of a name is written \\t, \\n, \\r
    or \\\\."""
    cells = keys.select(pl.col("tar", "key").pipe(_one_cell))
    return cells.write_csv(include_header=False, separator="\t", quote_style="never").encode()


#: What stands in a cell for a character that would end it; the backslash is replaced first.
_MARKS = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _one_cell(name: pl.Expr) -> pl.Expr:
    for character, mark in _MARKS.items():
        name = name.str.replace_all(character, mark, literal=True)
    return name
