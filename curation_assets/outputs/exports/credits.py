"""What exports carry along of where samples come from, and the file that credits their creators."""

from pathlib import Path

import polars as pl

from curation_assets.core.table_names import PROVENANCE
from curation_assets.flow.context import PoolContext
from curation_assets.stores.text_tables import write_text_table

CREDITS = "CREDITS.csv"
#: Columns of raw/provenance that exports carry along, as texts: dates in ISO 8601, signals as JSON.
PROVENANCE_COLUMNS = (
    "source", "licence", "licence_url", "creator", "source_url", "domain", "language", "fetched_at", "content_type",
    "rights_signals",
)  # fmt: skip
_CREDITED = ("creator", "licence", "licence_url", "source_url", "url", "source")


def with_provenance(ctx: PoolContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (shard, source_row, …) with those of PROVENANCE_COLUMNS that one of them has; `source` where one is
    declared or brought along. Pools that have not made raw/provenance yet give none."""
    if not ctx.store.partitions(PROVENANCE):
        return rows
    key = ["shard", "source_row"]
    there = (
        ctx.store.scan(PROVENANCE).select(*key, *PROVENANCE_COLUMNS).join(rows.lazy().select(key), on=key, how="semi")
    )
    found = (
        rows.select(key)
        .join(there.collect(), on=key, how="left", maintain_order="left")
        .with_columns(
            pl.col("fetched_at").dt.to_string("%Y-%m-%dT%H:%M:%SZ"),
            _as_json(pl.col("rights_signals")),
        )
    )
    named = [name for name in PROVENANCE_COLUMNS if found[name].null_count() < found.height]
    if (found["source"] == ctx.pool.name).all() and not ctx.pool.sources:
        named = [name for name in named if name != "source"]
    return rows.hstack(found.select(named))


def _as_json(signals: pl.Expr) -> pl.Expr:
    """A list of signals as JSON; null for none."""
    wrapped = pl.struct(signals.alias("signals")).struct.json_encode()
    text = wrapped.str.strip_prefix('{"signals":').str.strip_suffix("}")
    return pl.when(signals.list.len() > 0).then(text).alias("rights_signals")


def write_credits(rows: pl.DataFrame, path: Path) -> int:
    """Write a line per sample of which creator, licence or page is known, sorted by id: sample_id, creator, licence,
    licence_url, source_url, url, source. Returns how many."""
    absent = [pl.lit(None, pl.String).alias(name) for name in _CREDITED if name not in rows.columns]
    table = rows.with_columns(absent).select("sample_id", *_CREDITED)
    known = table.filter(pl.any_horizontal(pl.col("creator", "licence", "licence_url", "source_url").is_not_null()))
    write_text_table(known.sort("sample_id"), path)
    return known.height
