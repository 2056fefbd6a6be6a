"""Columns of many small Parquet files as arrays, file by file: what whole-pool steps read, without a frame of texts."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation_assets.numeric.identity import u64_of_hex

CODED = ("status", "reason")
THREADS = 2  # decoding runs outside Python's lock
Result = TypeVar("Result")


def read_columns(path: Path, columns: Sequence[str]) -> Any:
    """An Arrow table of one file; texts of few kinds (`CODED`) as dictionaries, as they are stored."""
    coded = [name for name in columns if name in CODED]
    return pq.ParquetFile(path, read_dictionary=coded).read(columns=list(columns), use_threads=False)


def each_file(function: Callable[[Path], Result], paths: Sequence[Path], threads: int = THREADS) -> Iterator[Result]:
    """`function` of every file, in order, a few at once."""
    with ThreadPoolExecutor(threads) as executor:
        yield from executor.map(function, paths)


def hex_column(column: Any) -> np.ndarray:
    """Texts of one length, hex digits, null left out → (M, length ÷ 16) uint64. Raises ValueError for others."""
    texts = column.drop_null().combine_chunks().cast(pa.large_string())
    if not len(texts):
        return np.zeros((0, 1), dtype=np.uint64)
    _, ends, data = texts.buffers()
    offsets = np.frombuffer(ends, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    widths = np.diff(offsets)
    if widths.min() != widths.max() or widths[0] % 16:
        raise ValueError(f"expected hex digits of one length, a multiple of 16, got lengths {np.unique(widths)[:5]}")
    letters = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return u64_of_hex(letters.reshape(len(texts), int(widths[0])))


def coded_column(column: Any) -> tuple[np.ndarray, list[str]]:
    """Texts → (N,) int32 codes, -1 for null, and the text of each code."""
    if not len(column):
        return np.zeros(0, dtype=np.int32), []
    whole = column.combine_chunks()
    coded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    codes = coded.indices.fill_null(-1) if coded.null_count else coded.indices
    return codes.to_numpy(zero_copy_only=False).astype(np.int32, copy=False), coded.dictionary.to_pylist()
