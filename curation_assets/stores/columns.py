"""Columns of many small Parquet files as arrays, file by file: what whole-pool steps read, without a frame of texts."""

import numpy as np
import polars as pl
import pyarrow as pa

from curation_assets.numeric.identity import u64_of_hex
from curation_assets.stores.arrow_buffers import text_bytes


def hex_column(texts: pl.Series) -> np.ndarray:
    """Texts of one length, hex digits, null left out → (M, length ÷ 16) uint64. Raises ValueError for others."""
    texts = texts.drop_nulls()
    if not len(texts):
        return np.zeros((0, 1), dtype=np.uint64)
    offsets, letters = text_bytes(texts.to_arrow(compat_level=pl.CompatLevel.oldest()))
    widths = np.diff(offsets)
    if widths.min() != widths.max() or widths[0] % 16:
        raise ValueError(f"expected hex digits of one length, a multiple of 16, got lengths {np.unique(widths)[:5]}")
    return u64_of_hex(letters.reshape(len(texts), int(widths[0])))


def words_of(ids: pl.Series) -> np.ndarray:
    """(N,) sample_ids → (N, 4) uint64, their letters as numbers: as different as the ids, and decoded in no time."""
    if not len(ids):
        return np.zeros((0, 4), dtype=np.uint64)
    letters = text_bytes(ids.to_arrow(compat_level=pl.CompatLevel.oldest()))[1]
    return np.frombuffer(letters, dtype="<u8").reshape(len(ids), 4)


def halves_of(ids: pl.Series) -> np.ndarray:
    """(N,) sample_ids → (N, 2) uint64, their high and low halves. Raises as `hex_column`."""
    return hex_column(ids).reshape(-1, 2)


def texts_of(name: str, letters: bytes, width: int) -> pl.Series:
    """One text after the other, of `width` ASCII letters each → (N,) strings, without a Python string of any."""
    ends = np.arange(0, len(letters) + 1, width, dtype=np.int64)
    texts = pa.LargeStringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(letters))
    return pl.Series(name, texts, dtype=pl.String)


def uid_texts(high: pl.Series | np.ndarray, low: pl.Series | np.ndarray) -> pl.Series:
    """Halves of ids, (N,) and (N,) uint64 → (N,) sample_ids of 32 hex digits; the inverse of `uid_columns`."""
    pairs = np.stack([np.asarray(high), np.asarray(low)], axis=1).astype(">u8")  # (N, 2)
    return texts_of("sample_id", pairs.tobytes().hex().encode(), 32)


def by_shard(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The rows of each shard, in their order; without a copy where the rows of a shard follow each other."""
    runs = frame["shard"].rle().struct.unnest()
    if runs["value"].n_unique() < runs.height:
        parts = frame.partition_by("shard", maintain_order=True, as_dict=True)
        return {str(shard): part.rechunk() for (shard,), part in parts.items()}
    ends = np.cumsum([0, *runs["len"]])
    whole = frame.rechunk()
    return {shard: whole[start:end] for shard, start, end in zip(runs["value"], ends, ends[1:], strict=False)}
