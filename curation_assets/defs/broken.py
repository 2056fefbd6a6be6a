"""What Dagster shows of a pool that cannot be loaded: an asset whose check fails with the reason; the others go on."""

import re
import zlib

import dagster as dg

from curation_assets.core.settings import POOL_NAME, Settings
from curation_assets.flow.graph import why_broken

CHECK = "can_be_loaded"
_OTHER = re.compile(r"[^A-Za-z0-9_]")


def declaration_key(pool: str) -> dg.AssetKey:
    """Key of the asset of a broken pool, whose file may be named as no pool is."""
    letters = pool if POOL_NAME.fullmatch(pool) else f"{_OTHER.sub('_', pool)}_{zlib.crc32(pool.encode()):08x}"
    return dg.AssetKey([letters, "declaration"])


def broken_asset(pool: str, why: str) -> dg.AssetSpec:
    """Stands for all tables of the pool; no run makes it."""
    return dg.AssetSpec(
        declaration_key(pool),
        group_name="broken",
        description=f"Pool {pool} cannot be loaded: {why}",
        kinds={"yaml"},
        metadata={"file": f"pools/{pool}.yaml"},
    )


def broken_check(settings: Settings, pool: str) -> dg.AssetChecksDefinition:
    """Tries again to load the pool; it passes once the code location is due to be loaded anew."""

    @dg.asset_check(asset=declaration_key(pool), name=CHECK, description="Whether the pool's tables can be listed.")
    def can_be_loaded() -> dg.AssetCheckResult:
        why = why_broken(settings, pool)
        return dg.AssetCheckResult(passed=why is None, description=why or "it can; load the code location anew")

    return can_be_loaded


def broken_sensor(settings: Settings, pool: str) -> dg.SensorDefinition:
    """In place of the pool's sensors: says why nothing of it is looked at, and lets the check fail with the reason."""
    key = declaration_key(pool)

    @dg.sensor(
        name=f"{key.path[0]}_cannot_be_loaded",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"States why pool {pool} cannot be loaded.",
    )
    def cannot_be_loaded(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        why = why_broken(settings, pool)
        said = why or f"pool {pool} can be loaded now: load the code location anew (`curate ui` does so by itself)"
        found = dg.AssetCheckEvaluation(asset_key=key, check_name=CHECK, passed=why is None, description=said)
        return dg.SensorResult(skip_reason=said, cursor=said, asset_events=[] if context.cursor == said else [found])

    return cannot_be_loaded
