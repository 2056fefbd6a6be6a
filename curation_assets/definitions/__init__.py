"""The code location: a table of contents. One set of assets per declared pool."""

import dagster as dg

from curation_assets.core.settings import PACKAGE_ROOT, Settings, load_settings
from curation_assets.defs.automation import backfill_sensor, dead_run_sensor
from curation_assets.defs.broken import broken_asset, broken_check, broken_sensor
from curation_assets.defs.event_log import write_events_in_batches
from curation_assets.defs.failures import failure_sensor
from curation_assets.defs.nightly import nightly
from curation_assets.defs.pool import pool_definitions
from curation_assets.defs.steps import observer_resource
from curation_assets.flow.graph import sound_and_broken
from curation_assets.foreign.dagster_runs import send_nothing


def build_definitions(settings: Settings) -> dg.Definitions:
    """Definitions of every pool declared under `settings.pools_root`; of one that cannot be loaded, what is wrong."""
    send_nothing()
    write_events_in_batches()  # of the runs of this code location, whoever launches them
    pools, broken = sound_and_broken(settings)
    of_home = dg.Definitions(
        assets=[broken_asset(pool, why) for pool, why in broken.items()],
        asset_checks=[broken_check(settings, pool) for pool in broken],
        schedules=[nightly(settings, pools)],
        sensors=[
            *(broken_sensor(settings, pool) for pool in broken),
            backfill_sensor(),
            dead_run_sensor(),
            *filter(None, [failure_sensor(settings)]),
        ],
        resources=observer_resource(),
        executor=dg.in_process_executor,  # as the pools' own jobs
    )
    return dg.Definitions.merge(*(pool_definitions(settings, pool) for pool in pools), of_home)


@dg.definitions
def defs() -> dg.Definitions:
    """Called by Dagster: the pools of the home in force and, in a checkout, what `dg scaffold defs` wrote."""
    pools = build_definitions(load_settings())
    if not (PACKAGE_ROOT.parent / "pyproject.toml").is_file():
        return pools
    return dg.Definitions.merge(pools, dg.load_from_defs_folder(path_within_project=PACKAGE_ROOT))
