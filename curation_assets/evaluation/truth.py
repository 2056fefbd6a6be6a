"""The planted truth of a pool, kept apart: evaluation alone reads it."""

from pathlib import Path

import polars as pl

from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.flow.context import PoolContext
from curation_assets.sources.noisy_photos import read_planted_truth
from curation_assets.stores.parquet import read_parquet


def has_truth(ctx: PoolContext) -> bool:
    """Whether the pool is a world, or names a file of planted kinds."""
    return ctx.pool.is_planted or DownstreamOptions.of(ctx).truth is not None


def read_truth(ctx: PoolContext) -> pl.DataFrame:
    """The planted truth of a world pool, or of one that names a file of it: sample_id, kind and more."""
    if DownstreamOptions.of(ctx).truth is not None:
        return read_planted_truth(truth_path(ctx))
    return read_parquet(ctx.store.root / "truth" / "planted.parquet")


def truth_path(ctx: PoolContext) -> Path:
    """The file that the pool's option `truth` names."""
    return Path(str(DownstreamOptions.of(ctx).truth)).expanduser()


def truth_config(ctx: PoolContext) -> dict[str, Path]:
    """That file, for the config of what reads it. Raises ValueError where it is missing or of another kind."""
    read_planted_truth(truth_path(ctx))  # refused before it is hashed
    return {"truth_sha256": truth_path(ctx)}
