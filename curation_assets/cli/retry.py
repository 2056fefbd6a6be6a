"""curate retry: failed rows once more, and nothing else."""

from collections import Counter
from typing import Annotated, Any

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    PoolArgument,
    ProfileOption,
    WaitOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
)
from curation_assets.core.progress import reporter_for
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.retry import MAY_PASS, failed_rows, reason_patterns, with_pending


@command("retry", "Pools")
def retry(
    pool: PoolArgument,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="REASON,…", help="Only these, * for any text, http_5xx for 500–599; default: may pass."
        ),
    ] = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Fetch and compute nothing: show what would be.")] = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Fetch failed downloads and ask models for failed rows again; what depends on them follows.

    All other images stay in their tars, byte for byte. Without --reason: timeouts, lost connections, http_429,
    http_5xx and the like, and errors of engines; not what a server or an owner refuses.
    """
    settings = settings_from(home, profile)
    if is_dry:
        ctx = PoolContext.open(settings, pool)
        failed = with_pending(ctx, failed_rows(ctx, tables_of(ctx), reason_patterns(reason)))
        counts = Counter((part.table, name) for part in failed for name in part.reasons)
        rows = [{"table": table, "reason": name, "before": number} for (table, name), number in sorted(counts.items())]
        _show(pool, rows, reason, as_json=as_json)
        return
    from curation_assets.defs.retry import retry_pool  # Dagster takes seconds to import

    counted = retry_pool(settings, pool, reasons=reason, progress=reporter_for(), on_notice=notice, wait=wait)
    _show(pool, counted, reason, as_json=as_json)


def _show(pool: str, counted: list[dict[str, Any]], reason: str | None, *, as_json: bool) -> None:
    if as_json:
        show_json({"pool": pool, "reasons": counted})
        return
    if not counted:
        show(f"{pool}: no row failed with {reason or ', '.join(MAY_PASS)}")
        return
    rows = []
    for row in counted:
        cells = [row["table"], row["reason"], f"{row['before']:,}"]
        if "succeeded" in row:
            still = ", ".join(f"{name}: {number:,}" for name, number in row["still_failed"].items())
            cells += [f"{row['succeeded']:,}", still or "none"]
        rows.append(cells)
    headings = ("table", "reason", "failed before", "succeeded", "still failed")[: len(rows[0])]
    show_table(headings, rows, left=("table", "reason", "still failed"), title=f"Retried rows of {pool}")
