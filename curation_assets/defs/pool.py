"""All that Dagster shows of one pool, whoever's project shows it."""

import dagster as dg

from curation_assets.core.settings import Settings
from curation_assets.defs.assets import pool_assets
from curation_assets.defs.automation import pool_jobs, shard_sensor
from curation_assets.defs.following import following_sensor
from curation_assets.defs.releases import releases_asset, summary_asset
from curation_assets.defs.sources import source_asset
from curation_assets.sources.declaration import load_pool


def pool_definitions(settings: Settings, pool_name: str) -> dg.Definitions:
    """Assets with their checks, jobs and sensors of a declared pool; resources and the backfill are the project's."""
    pool, jobs = load_pool(settings, pool_name), pool_jobs(settings, pool_name)
    return dg.Definitions(
        assets=[
            source_asset(settings, pool),
            *pool_assets(settings, pool_name),
            releases_asset(pool),
            summary_asset(pool),
        ],
        jobs=jobs,
        sensors=[shard_sensor(settings, pool_name), following_sensor(settings, pool_name, jobs)],
    )
