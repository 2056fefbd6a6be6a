"""How Dagster's assets, jobs and runs of a pool are named."""

from collections.abc import Sequence

import dagster as dg

from curation_assets.defs.options import DagsterOptions
from curation_assets.flow.table import Grain
from curation_assets.sources.declaration import Pool

JOBS: dict[Grain, str] = {"shard": "shards", "pool": "summary", "training": "trainings"}


def asset_key(pool: Pool, name: str) -> dg.AssetKey:
    """Key of a table's asset: [pool, stage, name], after the prefix that the pool's declaration names."""
    return dg.AssetKey([*DagsterOptions.of(pool).asset_key_prefix, pool.name, *name.split("/")])


def pool_and_table(key: Sequence[str]) -> tuple[str, str]:
    """Pool and table of the parts of an asset's key, whatever its prefix; empty names where it is of no table."""
    pool, *table = key[-3:] if len(key) >= 3 else ("", "")
    return pool, "/".join(table)


def job_name(pool: str, grain: Grain) -> str:
    """Name of a pool's job of all its tables of one grain, and of the runs of `curate run` that make some of them."""
    return f"{pool}_{JOBS[grain]}"
