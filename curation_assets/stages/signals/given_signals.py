"""Values of methods that a pool brings along: its option `given_signals`, method → column of its table or FILE:COLUMN.

    options: {given_signals: {clip_score: clip_b32_similarity_score, sieve: /data/sieve.parquet:cap_scores}}

A file (.parquet, .csv, .tsv, .jsonl) has the column, and sample_id (or uid, or url and caption), as files of the option
`given` have. No model of the method is loaded, and no image is needed.
"""

from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.methods import Method
from curation_assets.scoring.samples import BOUNDS_TOLERANCE, detail_schema
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.sources.options import SourceOptions, given_columns
from curation_assets.stages.signals.given_columns import read_given_values

NOT_GIVEN, NOT_FINITE = "not_given", "given_not_finite"


def given_source(ctx: PoolContext, method: str) -> tuple[Path | None, str] | None:
    """(file, or None for the pool's own table; column) of a method whose values are given; None for another.

    Raises ValueError for a file that does not exist, or a pool without a table of its own.
    """
    source = given_columns(SourceOptions.of(ctx).given_signals).get(method)
    if source is None:
        return None
    file, column = source
    where = f"pool {ctx.pool.name!r}: option given_signals: {method}"
    if file is not None and not file.is_file():
        raise ValueError(f"{where}: no file {file}")
    if file is None and not ctx.pool.source_kind.has_columns(ctx.pool):
        raise ValueError(f"{where}: this pool has no table with a column {column!r}; give FILE:{column}")
    return source


def given_config(ctx: PoolContext, method: str) -> dict[str, Any]:
    """What identifies given values: the column, and its file; the pool's own table is an input."""
    file, column = given_source(ctx, method) or (None, method)
    content = {} if file is None else {"file": file.name, "sha256": file}
    return {"given": {"column": column, **content}}


def given_values(ctx: PoolContext, method: Method, shard: str) -> pl.DataFrame:
    """The method's table from given values: sample_id, source_row, value, reason, details (null).

    A sample without a value, or with NaN, has the reason `not_given`, one with ±inf `given_not_finite`. Raises
    ValueError for values that cannot be in the method's unit.
    """
    samples = ctx.store.read(SAMPLES, shard)
    file, column = given_source(ctx, method.name) or (None, method.name)
    if file is None:
        values = ctx.store.read(REGISTERED_SHARDS, shard)[f"given_{method.name}"]  # row for row
    else:
        values = read_given_values(file, column, samples)
    infinite = values.is_infinite().fill_null(False)
    _check_unit(method, values.filter(~infinite), f"{file or ctx.pool.source}: column {column!r}")
    is_kept = pl.col("status") == "kept"
    given = values.clip(*method.bounds).set(infinite, None)
    why = pl.when(infinite).then(pl.lit(NOT_FINITE)).otherwise(pl.lit(NOT_GIVEN))
    marked = samples.with_columns(given.alias("value"))
    reason = pl.coalesce(upstream_reason(), pl.when(pl.col("value").is_null()).then(why))
    details = [pl.lit(None, dtype).alias(name) for name, dtype in detail_schema(method).items()]
    return marked.select(
        "sample_id",
        "source_row",
        pl.when(is_kept).then(pl.col("value")).alias("value"),
        reason.alias("reason"),
        *details,
    )


def _check_unit(method: Method, values: pl.Series, where: str) -> None:
    """Raise ValueError where a value is out of the method's bounds."""
    low, high = method.bounds
    outside = values.filter((values < low - BOUNDS_TOLERANCE) | (values > high + BOUNDS_TOLERANCE))
    if len(outside):
        scaled = "; divide by 100" if low >= -1 and high == 1 and outside.abs().max() <= 100 else ""  # type: ignore[operator]
        raise ValueError(
            f"{where} has {outside[0]:g} for {method.name}, which is {method.unit} in [{low:g}, {high:g}] "
            f"({len(outside)} such values){scaled}"
        )
