"""The code location: a table of contents. One set of assets per declared pool."""

import dagster as dg

from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.assets import observer_resource, pool_assets
from curation_assets.defs.automation import backfill_sensor, dead_run_sensor, pool_jobs, shard_sensor
from curation_assets.defs.broken import broken_asset, broken_check, broken_sensor
from curation_assets.defs.event_log import write_events_in_batches
from curation_assets.defs.failures import failure_sensor
from curation_assets.defs.following import following_sensor
from curation_assets.defs.nightly import nightly
from curation_assets.defs.releases import releases_asset, summary_asset
from curation_assets.flow.graph import sound_and_broken
from curation_assets.foreign.dagster_runs import find_own_configuration
from curation_assets.stores.objects import open_home


def build_definitions(settings: Settings) -> dg.Definitions:
    """Definitions of every pool declared under `settings.pools_root`; of one that cannot be loaded, what is wrong."""
    open_home(settings.home)
    find_own_configuration()
    write_events_in_batches()  # of the runs of this code location, whoever launches them
    pools, broken = sound_and_broken(settings)
    jobs = {pool: pool_jobs(settings, pool) for pool in pools}
    return dg.Definitions(
        assets=[
            *(asset for pool in pools for asset in pool_assets(settings, pool)),
            *(asset(pool) for pool in pools for asset in (releases_asset, summary_asset)),
            *(broken_asset(pool, why) for pool, why in broken.items()),
        ],
        asset_checks=[broken_check(settings, pool) for pool in broken],
        jobs=[job for pool in pools for job in jobs[pool]],
        schedules=[nightly(settings, pools)],
        sensors=[
            *(shard_sensor(settings, pool) for pool in pools),
            *(following_sensor(settings, pool, jobs[pool]) for pool in pools),
            *(broken_sensor(settings, pool) for pool in broken),
            backfill_sensor(),
            dead_run_sensor(),
            *filter(None, [failure_sensor(settings)]),
        ],
        resources=observer_resource(),
        # A process per step costs 2–4 s, and would load models and decode images once per step.
        executor=dg.in_process_executor,
    )


defs = build_definitions(load_settings())
