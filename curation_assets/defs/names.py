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


def group_of(pool: Pool, stage: str) -> str:
    """Group of a pool's assets of a stage in Dagster's UI."""
    return f"{pool.name}_{stage}"


def tags_of(pool: Pool, **more: str) -> dict[str, str]:
    """Tags of an asset of a pool. Dagster takes 63 characters of a value."""
    return {name: value[:63] for name, value in {"pool": pool.name, **more}.items()}


def pool_and_table(key: Sequence[str]) -> tuple[str, str]:
    """Pool and table of the parts of an asset's key, whatever its prefix; empty names where it is of no table."""
    pool, *table = key[-3:] if len(key) >= 3 else ("", "")
    return pool, "/".join(table)


def job_name(pool: str, grain: Grain) -> str:
    """Name of a pool's job of all its tables of one grain, and of the runs of `curate run` that make some of them."""
    return f"{pool}_{JOBS[grain]}"
