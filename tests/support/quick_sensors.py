"""The code location with sensors that look every ten seconds, in place of every half or whole minute."""

import dagster as dg

from curation_assets.definitions import build_definitions, load_settings


@dg.definitions
def quick() -> dg.Definitions:
    loaded = build_definitions(load_settings())
    for sensor in loaded.sensors or ():
        sensor._min_interval = 10  # type: ignore[union-attr]  # as an argument it would be every deployment's
    return loaded
