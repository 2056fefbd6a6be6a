"""What exports carry along of where samples come from, and the file that credits their creators."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from curation_assets.core.table_names import PROVENANCE
from curation_assets.flow.context import PoolContext
from curation_assets.selection.rows import ROW_KEY, looked_up
from curation_assets.stores.text_tables import write_text_parts

CREDITS = "CREDITS.csv"
#: Columns of raw/provenance that exports carry along, as texts: dates in ISO 8601, signals as JSON.
PROVENANCE_COLUMNS = (
    "source", "licence", "licence_url", "creator", "source_url", "domain", "language", "fetched_at", "content_type",
    "rights_signals",
)  # fmt: skip
_CREDITED = ("creator", "licence", "licence_url", "source_url", "url", "source")


def with_provenance(ctx: PoolContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (shard, source_row, …) with PROVENANCE_COLUMNS; as they are of pools that have not made raw/provenance."""
    if not ctx.store.partitions(PROVENANCE):
        return rows
    found = looked_up(ctx.store, rows.select(ROW_KEY), PROVENANCE, *PROVENANCE_COLUMNS).with_columns(
        pl.col("fetched_at").dt.to_string("%Y-%m-%dT%H:%M:%SZ"),
        _as_json(pl.col("rights_signals")),
    )
    return rows.hstack(found.select(PROVENANCE_COLUMNS))


def known_provenance(ctx: PoolContext, rows: pl.DataFrame) -> set[str]:
    """The PROVENANCE_COLUMNS that rows have; `source` only where one is declared or came with rows."""
    known = {name for name in PROVENANCE_COLUMNS if name in rows.columns and rows[name].null_count() < rows.height}
    if "source" in known and not ctx.pool.sources and (rows["source"].drop_nulls() == ctx.pool.name).all():
        known.remove("source")
    return known


def _as_json(signals: pl.Expr) -> pl.Expr:
    """A list of signals as JSON; null for none."""
    wrapped = pl.struct(signals.alias("signals")).struct.json_encode()
    text = wrapped.str.strip_prefix('{"signals":').str.strip_suffix("}")
    return pl.when(signals.list.len() > 0).then(text).alias("rights_signals")


def write_credits(parts: Iterable[pl.DataFrame], path: Path) -> int:
    """Write a line per row of which creator, licence or page is known, in their order. Returns how many."""
    heading = pl.DataFrame(schema={"sample_id": pl.String})
    return write_text_parts(map(_credited, itertools.chain([heading], parts)), path, ".csv")


def _credited(rows: pl.DataFrame) -> pl.DataFrame:
    absent = [pl.lit(None, pl.String).alias(name) for name in _CREDITED if name not in rows.columns]
    table = rows.with_columns(absent).select("sample_id", *_CREDITED)
    return table.filter(pl.any_horizontal(pl.col("creator", "licence", "licence_url", "source_url").is_not_null()))
