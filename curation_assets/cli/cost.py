"""curate cost: what a pool has cost so far."""

import json as json_format
from typing import Annotated, Any

import polars as pl
import typer
from rich.table import Table

from curation_assets.audit.cost import per_kept_sample, stage_costs, table_costs
from curation_assets.cli.common import HomeOption, console, errors_as_sentences, settings_from
from curation_assets.cli.diff import the_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of

HEADINGS = {
    "seconds": "wall s", "cpu_seconds": "CPU s", "gpu_seconds": "GPU s", "bytes": "bytes",
    "earlier_cpu_seconds": "replaced, CPU s", "wasted_attempts": "lost tries", "wasted_cpu_seconds": "lost, CPU s",
    "wasted_gpu_seconds": "lost, GPU s",
}  # fmt: skip


@errors_as_sentences
def cost(
    pool: Annotated[str | None, typer.Argument(help="Needed when several pools have run.")] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Per table instead of per stage.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, as JSON on standard output.")] = False,
    home: HomeOption = None,
) -> None:
    """Show wall, CPU and GPU seconds and bytes per stage and per kept sample, and apart what retries wasted."""
    settings = settings_from(home)
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    costs = table_costs(ctx.store, tables_of(ctx))
    applied = [one.name for one in policies_of(ctx) if ctx.store.partitions(f"filtered/{one.name}")]
    kept = {name: per_kept_sample(ctx.store, name) for name in applied if _keeps(ctx, name)}
    if json:
        told = {"tables": costs.to_dicts(), "stages": stage_costs(costs).to_dicts(), "per_kept_sample": kept}
        typer.echo(json_format.dumps(told, indent=1))
        return
    _show(costs if tables else stage_costs(costs), "table" if tables else "stage")
    shown = Table(title="Per kept sample", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("policy", "kept", "wall ms", "CPU ms", "GPU ms", "bytes"):
        shown.add_column(heading, justify="left" if heading == "policy" else "right")
    for name, one in kept.items():
        times = (_number(one[key], 1000) for key in ("seconds", "cpu_seconds", "gpu_seconds"))
        shown.add_row(name, f"{one['kept']:,}", *times, _number(one["bytes"]))
    console.print(shown)


def _keeps(ctx: PoolContext, policy: str) -> bool:
    return bool((ctx.store.scan(f"filtered/{policy}").select("verdict").collect()["verdict"] == "kept").any())


def _show(costs: pl.DataFrame, first: str) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first)
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right")
    for row in costs.iter_rows(named=True):
        table.add_row(row[first], *(_number(row[name]) for name in HEADINGS))
    console.print(table)


def _number(value: Any, scale: float = 1) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value * scale:,.1f}"
