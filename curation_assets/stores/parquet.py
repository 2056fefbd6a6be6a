"""Parquet files read by their paths: `[ ] * ?` in a path is no pattern, and a folder such as `seed=3` no column.

Every read of the package goes through here; a test looks for others.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import polars as pl
from polars.io.plugins import register_io_source

from curation_assets.core.seal import FIELD, UNSEALED, is_sealed, seal_file

PART_ROWS = 1 << 16  # of a file that is read part by part: 40 MB of usual captions with their URLs
GROUP_ROWS = 122_880  # polars divides a frame evenly into row groups, as near to so many rows as can be
_SEAL = "curation_seal"
#: What polars raises for a file that is no Parquet, or a damaged one.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_AS_STORED: dict[str, Any] = {"glob": False, "hive_partitioning": False}
_SHARD = r"shard=([^/]*)/[^/]*$"
_PATTERN = re.compile(r"[\[*?]")


def read_parquet(source: Path | IO[bytes], columns: Sequence[str] | None = None, **others: Any) -> pl.DataFrame:
    """One file, whole or some of its columns, as it is stored. `others`: of polars."""
    return pl.read_parquet(source, columns=None if columns is None else list(columns), **_AS_STORED, **others)


def scan_parquet(source: Path | list[Path], **others: Any) -> pl.LazyFrame:
    """One file, or several with the same columns, lazily, as they are stored. `others`: of polars."""
    return pl.scan_parquet(source, **_AS_STORED, **others)


def scan_shards(paths: list[Path]) -> pl.LazyFrame:
    """Files in folders `shard=KEY`, lazily, with the column `shard` last."""
    if not _has_other_keys(paths[0].parent.parent):
        return pl.scan_parquet(paths, glob=False, hive_partitioning=True, hive_schema={"shard": pl.String})
    shard = pl.col("filename").str.extract(_SHARD)
    return scan_parquet(paths, include_file_paths="filename").with_columns(shard=shard).drop("filename")


def parquet_schema(path: Path) -> dict[str, pl.DataType]:
    """Column → type, without a row being read."""
    return dict(scan_parquet(path).collect_schema())


def parquet_rows(path: Path) -> int:
    """How many rows a file has."""
    return int(scan_parquet(path).select(pl.len()).collect().item())


def parquet_parts(path: Path) -> Iterator[pl.LazyFrame]:
    """The rows of a file, PART_ROWS at a time, each part lazily; of a file without rows one part."""
    scan = scan_parquet(path)
    return (scan.slice(start, PART_ROWS) for start in range(0, max(1, parquet_rows(path)), PART_ROWS))


def parquet_footer(path: Path) -> dict[str, str]:
    """What was stored beside the columns: key → text."""
    return pl.read_parquet_metadata(path)


def write_sealed(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a frame with its own sha256 (core/seal.py), for what is kept beside tables."""
    footer = {**metadata, _SEAL: json.dumps({FIELD: UNSEALED})}
    frame.write_parquet(path, compression="zstd", metadata=footer)
    seal_file(path)


def is_whole(path: Path) -> bool:
    """Whether a file of `write_sealed` is what was written; one of a version before, without a seal, counts as that."""
    if is_sealed(path.read_bytes()):
        return True
    try:
        return _SEAL not in parquet_footer(path)
    except (*UNREADABLE, ValueError):
        return False


def write_as_frame(path: Path, parts: Iterator[pl.DataFrame], schema: pl.Schema, rows: int) -> None:
    """Write rows that come part by part with the row groups, and so the bytes, that polars gives a frame of all."""
    fewer = max(1, rows // GROUP_ROWS)
    is_nearer = rows // fewer - GROUP_ROWS > GROUP_ROWS - rows // (fewer + 1)
    groups = fewer + is_nearer

    def batches(columns: list[str] | None, *_: object) -> Iterator[pl.DataFrame]:
        ready = schema.to_frame()
        for group in range(groups):
            size = rows // groups + (group < rows % groups)
            while ready.height < size:
                ready = pl.concat([ready, next(parts)])
            group_rows = ready[:size].rechunk()  # else pages end where parts do
            yield group_rows if columns is None else group_rows.select(columns)
            ready = ready[size:]
        assert not any(part.height for part in parts)  # what gives them is at its end, and clears up

    register_io_source(batches, schema=schema).sink_parquet(path, compression="zstd")


def text_sql(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def path_sql(path: Path) -> str:
    """An absolute path as DuckDB's readers take it, who read patterns; without a character to escape, as it is."""
    return text_sql(_PATTERN.sub(r"[\g<0>]", str(path.absolute())))


#: The same in SQL, of a path that is known when a query runs.
ESCAPED_SQL = r"regexp_replace({path}, '([\[*?])', '[\1]', 'g')"


def table_sql(path: str) -> str:
    """What DuckDB reads of a file. `path`: as `path_sql` writes it."""
    return f"read_parquet({path}, hive_partitioning = false)"


def shards_sql(folder: Path, paths: Sequence[str]) -> str:
    """What DuckDB reads of files in folders `shard=KEY` of `folder`, with the column `shard`."""
    files = f"[{', '.join(paths)}]"
    if not _has_other_keys(folder):
        return f"read_parquet({files}, hive_partitioning = true, hive_types = {{'shard': 'VARCHAR'}})"
    shard = f"regexp_extract(filename, {text_sql(_SHARD)}, 1) as shard"
    others = "columns(lambda name: name not in ('filename', 'shard'))"
    return f"(select {others}, {shard} from read_parquet({files}, hive_partitioning = false, filename = true))"


def _has_other_keys(folder: Path) -> bool:
    """Whether a folder above the shards reads as a column and its value, which would hide a column of that name."""
    return any("=" in part for part in folder.absolute().parts)
