"""A retry from its failed rows to the tables that depend on them."""

from collections.abc import Callable
from typing import Any

from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import DOWNLOADS, SAMPLES
from curation_assets.defs.launch import run_pool
from curation_assets.defs.publishing import run_and_publish
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import TableReport
from curation_assets.operations.retry import (
    begin_retry,
    counts_after,
    end_retry,
    failed_rows,
    reason_patterns,
    recompute_rows,
    request_downloads,
    still_failed,
    with_pending,
)
from curation_assets.stores.lease import alone_with_tables, pool_lease


def retry_pool(
    settings: Settings,
    pool: str,
    *,
    reasons: str | None = None,
    progress: ProgressReporter | None = None,
    on_table: Callable[[TableReport], None] = lambda report: None,
    on_notice: Callable[[str], None] = lambda sentence: None,
    wait: bool = True,
) -> list[dict[str, Any]]:
    """Fetch and compute failed rows of a pool again, then run what depends on them. Counts per table and reason.

    `reasons`: between commas; None: those that may pass. Raises what `run_pool` raises. Killed, a second call goes on,
    and counts what the first one found.
    """
    patterns = reason_patterns(reasons)
    work, command = settings.work(pool), f"curate retry {pool}"
    with pool_lease(work, command, on_notice=on_notice, wait=wait):
        ctx = PoolContext.open(settings, pool, progress=progress)
        tables = tables_of(ctx)
        failed = with_pending(ctx, failed_rows(ctx, tables, patterns))
        if not failed:
            return []
        begin_retry(ctx, failed)
        still = still_failed(ctx, failed)
        with alone_with_tables(work, command, on_notice=on_notice):
            request_downloads(ctx, still)
        if any(part.table == DOWNLOADS for part in failed):
            raw = [DOWNLOADS, SAMPLES]
            run_pool(settings, pool, tables=raw, progress=progress, on_table=on_table, on_notice=on_notice)
        with alone_with_tables(work, command, on_notice=on_notice):
            recompute_rows(ctx, tables, still, on_notice)
        run_and_publish(settings, pool, progress=progress, on_table=on_table, on_notice=on_notice)
        counts = counts_after(ctx, failed)
        end_retry(ctx)
        return counts
