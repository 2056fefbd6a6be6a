"""What policies keep, as a list."""

import polars as pl

from curation_assets.flow.context import PoolContext


def kept_ids(ctx: PoolContext, policy: str) -> list[str]:
    """sample_ids that a policy keeps, sorted."""
    verdicts = ctx.store.scan(f"filtered/{policy}").collect().filter(pl.col("verdict") == "kept")
    return sorted(verdicts["sample_id"])
