"""A takedown from its beginning to its certificate: what is purged is made again by a run of the pool."""

from collections.abc import Callable
from typing import Any

from curation_assets.core.settings import Settings
from curation_assets.defs.instance_records import InstanceRecords
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.releases import record_releases
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.releases import denied_samples, withdraw
from curation_assets.operations.takedown import begin_takedown, finish_takedown, forget_pending, pending_takedown
from curation_assets.stores.lease import alone_with_tables, pool_lease


def take_down(
    settings: Settings,
    pool: str,
    *,
    with_sources: bool = False,
    on_notice: Callable[[str], None] = lambda sentence: None,
    wait: bool = True,
) -> dict[str, Any] | None:
    """Purge, make the affected partitions again, certify. None where the pool holds nothing of the denylist.

    A takedown that was interrupted is finished with it. `on_notice` receives what it waits for. Raises what `run_pool`
    raises; a second call goes on.
    """
    work, command = settings.work(pool), "curate takedown apply"
    with pool_lease(work, command, on_notice=on_notice, wait=wait), prepare_instance(settings) as instance:
        ctx = PoolContext.open(settings, pool)
        tables = tables_of(ctx)
        records = InstanceRecords(settings, instance)
        with alone_with_tables(work, command, on_notice=on_notice):
            begun = begin_takedown(ctx, tables, with_sources=with_sources, records=records)
        if begun is None:
            forget_pending(ctx)  # of one that was killed right before its end
            return None
        if begun.tables:
            run_pool(settings, pool, tables=[name for name in begun.tables if name in tables], on_notice=on_notice)
        certificate, path = finish_takedown(ctx, tables, begun, records)
        if certificate["releases_withdrawn"]:
            record_releases(settings, pool)
        return {**certificate, "certificate": str(path)}


def withdraw_denied(settings: Settings, pool: str) -> list[str]:
    """Withdraw releases of a pool that list what the denylist knows by its id, whether the pool has it or not.

    Returns their names. Raises what `withdraw` raises.
    """
    withdrawn = withdraw(settings.home, pool, denied_samples(settings.home, pool))
    if withdrawn:
        record_releases(settings, pool)
    return [release.name for release in withdrawn]


def finish_interrupted(
    settings: Settings, pool: str, *, on_notice: Callable[[str], None] = lambda sentence: None, wait: bool = True
) -> dict[str, Any] | None:
    """Finish a takedown of the pool that was begun and has no certificate; None where there is none.

    Raises what `take_down` raises.
    """
    if pending_takedown(settings.home, pool) is None:
        return None
    return take_down(settings, pool, on_notice=on_notice, wait=wait)
