"""A takedown from its beginning to its certificate; what its purge removed is made again between, where it can be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.defs.instance_records import InstanceRecords
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.releases import record_releases
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import readable_tables, tables_of
from curation_assets.flow.holder import Takedown
from curation_assets.flow.holders import to_be_made_again
from curation_assets.flow.table import TableReport
from curation_assets.operations.releases import denied_samples, withdraw
from curation_assets.operations.takedown import begin_takedown, finish_takedown, forget_pending, pending_takedown
from curation_assets.stores.lease import alone_with_tables, pool_lease
from curation_assets.stores.releases import list_releases
from curation_assets.stores.waiting import PoolHeldError


def take_down(
    settings: Settings,
    pool: str,
    *,
    with_sources: bool = False,
    on_notice: Callable[[str], None] = lambda sentence: None,
    progress: ProgressReporter | None = None,
    wait: bool = True,
) -> dict[str, Any] | None:
    """Purge, make what is made of all rows again, certify. None where the pool holds nothing of the denylist.

    A takedown that was interrupted is finished with it. `on_notice` receives what it waits for, and why something is
    not made again: the certificate does not wait for that. Raises what `begin_takedown` and `finish_takedown` raise; a
    second call goes on.
    """
    work, command = settings.work(pool), "curate takedown apply"
    with pool_lease(work, command, on_notice=on_notice, wait=wait), prepare_instance(settings) as instance:
        ctx, faults = _opened(settings, pool, progress)
        tables, unlisted = readable_tables(ctx)
        faults += unlisted
        records = InstanceRecords(settings, instance)
        with alone_with_tables(work, command, on_notice=on_notice):
            begun = begin_takedown(ctx, tables, with_sources=with_sources, records=records)
        if begun is None:
            forget_pending(ctx)  # of one that was killed right before its end
            return None
        _make_again(settings, ctx, begun, faults, on_notice)
        certificate, path = finish_takedown(ctx, tables, begun, records)
        if certificate["releases_withdrawn"]:
            record_releases(settings, pool)
        return {**certificate, "certificate": str(path)}


def _opened(settings: Settings, pool: str, progress: ProgressReporter | None) -> tuple[PoolContext, list[str]]:
    """A pool, whichever profile its declaration names; and why it cannot be opened with that one."""
    try:
        return PoolContext.open(settings, pool, progress=progress), []
    except EXPECTED_ERRORS as error:
        without = replace(settings, is_profile_chosen=True)
        return PoolContext.open(without, pool, progress=progress), [str(error)]


def _make_again(
    settings: Settings, ctx: PoolContext, takedown: Takedown, faults: Sequence[str], on_notice: Callable[[str], None]
) -> None:
    """Make again what is made of all rows, as far as it can be made of what there is; the next run makes the rest.

    `faults`: why tables of the pool cannot be listed.
    """

    def made(report: TableReport) -> None:
        if report.computed:
            on_notice(f"  {report.table} made again in {report.seconds:.1f} s")

    try:
        if faults:
            raise ValueError("; ".join(faults))
        if names := to_be_made_again(ctx, tables_of(ctx), takedown):
            run_pool(settings, ctx.pool.name, tables=names, progress=ctx.progress, on_table=made, on_notice=on_notice)
    except Exception as error:  # whatever fails: nothing of the samples is left in what is there
        kind = "" if isinstance(error, EXPECTED_ERRORS) else f"unexpected {type(error).__name__}: "
        on_notice(f"The takedown goes on without all tables that it removed: {kind}{error}")


def withdraw_denied(settings: Settings, pool: str) -> list[str]:
    """Withdraw releases of a pool that list what the denylist knows by its id, whether the pool has it or not.

    Returns their names. Raises what `withdraw` raises.
    """
    withdrawn = withdraw(settings.home, pool, denied_samples(settings.home, list_releases(settings.home, pool)))
    if withdrawn:
        record_releases(settings, pool)
    return [release.name for release in withdrawn]


def finish_interrupted(
    settings: Settings,
    pool: str,
    *,
    on_notice: Callable[[str], None] = lambda sentence: None,
    progress: ProgressReporter | None = None,
    wait: bool = True,
) -> dict[str, Any] | None:
    """Finish a takedown of the pool that was begun and has no certificate; None where there is none.

    One that cannot be finished is said to `on_notice`: what is denied comes back by no run, so none waits for it.
    Raises PoolHeldError.
    """
    try:
        if pending_takedown(settings.home, pool) is None:
            return None
        return take_down(settings, pool, on_notice=on_notice, progress=progress, wait=wait)
    except PoolHeldError:
        raise
    except EXPECTED_ERRORS as error:
        on_notice(
            f"warning: a takedown of pool {pool!r} was begun and cannot be finished: {error}. This run goes on without "
            f"it, and brings back nothing that is denied. Mend that, then `curate takedown apply --pool {pool}`"
        )
        return None
