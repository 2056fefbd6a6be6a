"""Repair of what `curate verify` found: damaged files are removed, and made again by a run of the pool."""

from collections.abc import Callable, Sequence

from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.defs.publishing import run_and_publish
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.verify import PENDING, unfinished_repair, verify_pool
from curation_assets.stores.damage import Damage
from curation_assets.stores.documents import remove_document, save_document
from curation_assets.stores.lease import alone_with_tables, pool_lease


def repair_pool(
    settings: Settings,
    pool: str,
    damages: Sequence[Damage],
    *,
    progress: ProgressReporter,
    on_notice: Callable[[str], None] = lambda sentence: None,
) -> list[Damage]:
    """Repair what can be repaired, and what a repair that was killed had begun. Returns what is damaged after it.

    Raises what a run of the pool raises.
    """
    work, command = settings.work(pool), f"curate verify {pool} --repair"
    with pool_lease(work, command, on_notice=on_notice):
        damaged = {table for damage in damages for table in damage.tables} | set(unfinished_repair(work))
        save_document(work / PENDING, sorted(damaged))
        with alone_with_tables(work, command, on_notice=on_notice):
            for damage in damages:
                if damage.repair is not None:
                    damage.repair()
        ctx = PoolContext.open(settings, pool)
        declared = tables_of(ctx)
        if remade := [name for name in declared if name in damaged]:
            on_notice(f"Pool {pool}: making {', '.join(remade)} again")
            run_and_publish(settings, pool, progress=progress, tables=remade, on_notice=on_notice)
        left = verify_pool(ctx, declared, progress).damages
        remove_document(work / PENDING)
        return left
