"""A run of a pool together with what others read of it: lineage events and the catalogue of views."""

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from curation_assets.core.errors import ExpectedError
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Settings, is_in_bucket
from curation_assets.defs.launch import phase_of, run_pool
from curation_assets.defs.takedown import finish_interrupted
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Phase, Table, TableReport
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.lease import pool_lease


def run_and_publish(
    settings: Settings,
    pool_name: str,
    *,
    progress: ProgressReporter | None = None,
    on_table: Callable[[TableReport], None] = lambda report: None,
    on_notice: Callable[[str], None] = lambda sentence: None,
    shards: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    phase: Phase | None = None,
    on_left: Callable[[Sequence[Table]], None] = lambda tables: None,
    wait: bool = True,
    command: str | None = None,
) -> list[TableReport]:
    """`run_pool`, then what others read of it: OpenLineage events where `settings` name a receiver, and the catalogue.

    `on_notice` receives sentences about the events and about other runs; a receiver that is down costs a notice, not
    the run. A takedown of the pool that was interrupted is finished first. `command`: what others that wait for it
    read. Raises what `run_pool` raises.
    """
    named = command or f"run of {pool_name}"
    work, is_shared = settings.work(pool_name), phase_of(shards, phase) == "shards"
    with contextlib.ExitStack() as held:
        if not is_shared:
            held.enter_context(pool_lease(work, named, on_notice=on_notice, wait=wait))
        certificate = finish_interrupted(settings, pool_name, on_notice=on_notice, progress=progress, wait=wait)
        if certificate is not None:
            on_notice(
                f"A takedown that was interrupted is finished: {len(certificate['samples'])} rows, "
                f"{len(certificate['left'])} files still hold something; certificate {certificate['certificate']}"
            )
        if is_shared:
            held.enter_context(pool_lease(work, named, on_notice=on_notice, wait=wait, shared=True))
        began = datetime.now(UTC).replace(microsecond=0)  # manifests hold whole seconds
        try:
            reports = run_pool(
                settings,
                pool_name,
                progress=progress,
                on_table=on_table,
                shards=shards,
                tables=tables,
                phase=phase,
                on_notice=on_notice,
                on_left=on_left,
            )
        finally:  # of a failed run, too
            if settings.openlineage_url is not None:
                on_notice(_send_events(settings, pool_name, settings.openlineage_url, began, tables))
    if not is_shared or not is_in_bucket(settings.home):  # over a bucket it fetches every table of the home
        rebuild_catalog(settings.home)
    return reports


def _send_events(
    settings: Settings, pool_name: str, receiver: str, began: datetime, tables: Sequence[str] | None
) -> str:
    """Send what was computed since `began`; a sentence about it."""
    from curation_assets.defs.lineage import events_since

    ctx = PoolContext.open(settings, pool_name)
    try:
        events = events_since(ctx, tables or list(tables_of(ctx)), began)
        from curation_assets.audit.openlineage_events import emit  # of the extra `lineage`

        sent = emit(events, receiver)
    except (ValueError, ExpectedError) as error:
        return f"warning: {error}"
    return f"OpenLineage: {sent} events to {receiver}"
