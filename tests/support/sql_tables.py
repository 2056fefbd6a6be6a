"""Tables for SQL models: signals and samples of one shard, on a DuckDB connection."""

import duckdb
import polars as pl


def connection_of(tables: dict[str, pl.DataFrame]) -> duckdb.DuckDBPyConnection:
    """The tables, and the range of every signal among them."""
    connection = duckdb.connect()
    ranges = {
        f"fused.{key.removeprefix('signals.')}_range": frame.select(
            low=pl.col("value").cast(pl.Float64).min(), high=pl.col("value").cast(pl.Float64).max()
        )
        for key, frame in tables.items()
        if key.startswith("signals.")
    }
    for key, frame in (ranges | tables).items():
        connection.execute(f"create schema if not exists {key.split('.')[0]}")
        connection.register("frame", frame)
        connection.execute(f"create table {key} as select * from frame")
    return connection


def signal(values: list[float | None], reasons: list[str | None] | None = None) -> pl.DataFrame:
    n = len(values)
    return pl.DataFrame(
        {
            "shard": ["scenes-000000"] * n,
            "source_row": list(range(n)),
            "sample_id": [f"{i:032x}" for i in range(n)],
            "value": values,
            "reason": reasons or [None] * n,
        },
        schema_overrides={"value": pl.Float64, "reason": pl.String},
    )


def samples(status: list[str], reasons: list[str | None]) -> pl.DataFrame:
    n = len(status)
    return signal([0.0] * n, reasons).drop("value").with_columns(pl.Series("status", status))
