"""Why a row has no value: raw did not keep it. `flow/scaled.py` and SQL models write the same rule in SQL."""

import polars as pl

UPSTREAM = "upstream_"  # begins such a reason


def upstream_reason() -> pl.Expr:
    """'upstream_<status>:<reason>' from the columns status and reason of raw/samples; null for a row that raw kept."""
    status, reason = pl.col("status").fill_null("unknown"), pl.col("reason").fill_null("no_reason")
    return pl.when(status != "kept").then(pl.format(f"{UPSTREAM}{{}}:{{}}", status, reason))
