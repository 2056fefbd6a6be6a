"""curate show cost: what a pool has cost so far."""

from typing import Annotated, Any

import polars as pl
import typer

from curation_assets.audit.cost import per_kept_sample, stage_costs, table_costs
from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, settings_from, show, show_json, show_table
from curation_assets.cli.diff import the_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of

HEADINGS = {
    "seconds": "wall s", "cpu_seconds": "CPU s", "gpu_seconds": "GPU s", "bytes": "bytes",
    "earlier_cpu_seconds": "replaced, CPU s", "wasted_attempts": "lost tries", "wasted_cpu_seconds": "lost, CPU s",
    "wasted_gpu_seconds": "lost, GPU s",
}  # fmt: skip


@command("show cost", "Why, and what if")
def cost(
    pool: Annotated[str | None, typer.Argument(help="Needed when several pools have run.")] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Per table instead of per stage.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show wall, CPU and GPU seconds and bytes per stage and per kept sample.

    What retries wasted is counted apart.
    """
    settings = settings_from(home)
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    declared = tables_of(ctx)
    costs = table_costs(ctx.store, declared)
    applied = [policy.name for policy in policies_of(ctx) if ctx.store.partitions(f"filtered/{policy.name}")]
    kept = {name: per_kept_sample(ctx.store, name) for name in applied if _keeps(ctx, name)}
    if as_json:
        content = {"tables": costs.to_dicts(), "stages": stage_costs(costs).to_dicts(), "per_kept_sample": kept}
        show_json(content)
        return
    titled = costs.with_columns(pl.col("table").replace({name: table.title for name, table in declared.items()}))
    _show(titled if tables else stage_costs(costs), "table" if tables else "stage")
    rows = []
    for name, record in kept.items():
        times = (_number(record[key], 1000) for key in ("seconds", "cpu_seconds", "gpu_seconds"))
        rows.append((name, f"{record['kept']:,}", *times, _number(record["bytes"])))
    show()
    show_table(("policy", "kept", "wall ms", "CPU ms", "GPU ms", "bytes"), rows, title="Per kept sample")


def _keeps(ctx: PoolContext, policy: str) -> bool:
    return bool((ctx.store.scan(f"filtered/{policy}").select("verdict").collect()["verdict"] == "kept").any())


def _show(costs: pl.DataFrame, first: str) -> None:
    rows = ((row[first], *(_number(row[name]) for name in HEADINGS)) for row in costs.iter_rows(named=True))
    show_table((first, *HEADINGS.values()), rows, keep=(first,))


def _number(value: Any, scale: float = 1) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value * scale:,.1f}"
