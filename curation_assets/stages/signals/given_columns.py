"""Columns that a pool brings along instead of having a model make them: its option `given`, column → file.

    options: {given: {generated_captions: captions.parquet, detected_objects: detections.jsonl}}

A file (.parquet, .csv, .tsv, .jsonl) has the column, and `sample_id` (or `uid`), or else `url` and `caption` (in pools
of captions alone `caption`), from which sample_ids are made as in the pool. Lists of texts in .csv and .tsv are JSON.
No model of the column's role is loaded then.
"""

from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.validation import check_known
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.scoring.files import as_samples
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.sources.text_columns import number
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.text_format import table_suffix
from curation_assets.stores.text_tables import read_table

ID_COLUMNS = ("sample_id", "uid")


def given_file(ctx: PoolContext, column: str) -> Path | None:
    """The file that the pool names for a column. Raises ValueError for a column that no method reads, or no file."""
    given = FlowOptions.of(ctx).given
    check_known(f"pool {ctx.pool.name!r}: option given", "column", given, DERIVED_COLUMNS)
    if column not in given:
        return None
    path = Path(str(given[column])).expanduser()
    if not path.is_file():
        raise ValueError(f"pool {ctx.pool.name!r}: option given names no file for {column}: {path}")
    return path


def read_given(path: Path, column: str, samples: pl.DataFrame) -> pl.DataFrame:
    """The column for every row of raw.samples: sample_id, source_row, the column, its further ones (null where the file
    lacks them, or has them as text), reason (`not_given` for a gap).

    Raises ValueError for a file without the column or the ids, cells of another type, or two different entries of one
    sample.
    """
    further = DERIVED_COLUMNS[column].further
    names = [column, *further]
    values = _rows_of(path, column, samples)
    values = values.drop(name for name in further if values.schema.get(name) == pl.String)
    values = values.select("sample_id", *(name for name in names if name in values.columns)).unique(maintain_order=True)
    twice = values.filter(pl.col("sample_id").is_duplicated())
    if twice.height:
        raise ValueError(f"{path} has different {column} for sample {twice['sample_id'][0]}; keep one row of each")
    values = values.with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in further.items() if name not in values.columns
    )
    joined = samples.join(values, on="sample_id", how="left", maintain_order="left")
    is_kept = pl.col("status") == "kept"
    reason = pl.coalesce(upstream_reason(), pl.when(pl.col(column).is_null()).then(pl.lit("not_given")))
    return joined.select(
        "sample_id", "source_row", *(pl.when(is_kept).then(pl.col(name)).alias(name) for name in names), reason=reason
    )


def read_given_values(path: Path, column: str, samples: pl.DataFrame) -> pl.Series:
    """A column of numbers for every row of raw.samples, (N,) float64, null where the file has none (or NaN).

    Raises ValueError as `read_given` does, and for a text that is no number.
    """
    rows = _rows_of(path, column, samples, is_number=True).select("sample_id", column).unique(maintain_order=True)
    twice = rows.filter(pl.col("sample_id").is_duplicated())
    if twice.height:
        raise ValueError(f"{path} has different {column} for sample {twice['sample_id'][0]}; keep one row of each")
    return samples.select("sample_id").join(rows, on="sample_id", how="left", maintain_order="left")[column]


def _rows_of(path: Path, column: str, samples: pl.DataFrame, *, is_number: bool = False) -> pl.DataFrame:
    """Rows of the file about these samples, the column in its type. Raises ValueError for a damaged file."""
    try:
        return _read_rows(path, column, samples, is_number)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        words = f"{path} cannot be read ({type(error).__name__}: {error}); put a whole copy of it in its place"
        raise ValueError(words) from error


def _read_rows(path: Path, column: str, samples: pl.DataFrame, is_number: bool) -> pl.DataFrame:
    ids = samples["sample_id"].implode()
    if path.suffix == ".parquet":
        columns = scan_parquet(path).collect_schema().names()
        own = next((name for name in ID_COLUMNS if name in columns), None)
        if own is not None and column in columns:  # only the requested rows come into memory
            matching = scan_parquet(path).filter(pl.col(own).is_in(ids))
            return _typed(path, column, matching.rename({own: "sample_id"}).collect(), is_number)
    table = read_table(path)
    has_id = bool(set(ID_COLUMNS) & set(table.columns))
    identifying = {"caption"} if samples["url"].drop_nulls().is_empty() else {"url", "caption"}
    if column not in table.columns or not (has_id or identifying <= set(table.columns)):
        raise ValueError(
            f"{path}: expected {column} and sample_id (or uid, or {' and '.join(sorted(identifying))}), "
            f"got {table.columns}"
        )
    is_text = table_suffix(path) == ".jsonl" and table.schema[column] == pl.String
    if is_text and table[column].str.contains(r'^\{"').any():  # an object is read as its JSON
        raise ValueError(f"{path}: {column} must be List(String) or numbers, got objects")
    if "caption" not in table.columns:
        table = table.with_columns(pl.lit(None, pl.String).alias("caption"))
    return _typed(path, column, as_samples(table).filter(pl.col("sample_id").is_in(ids)), is_number)


def _typed(path: Path, column: str, rows: pl.DataFrame, is_number: bool) -> pl.DataFrame:
    if is_number:
        return rows.with_columns(number(path, rows, column).alias(column))
    dtype: Any = DERIVED_COLUMNS[column].dtype
    try:
        return rows.with_columns(pl.col(column).cast(dtype))
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: {column} must be {dtype}, got {rows.schema[column]}") from error
