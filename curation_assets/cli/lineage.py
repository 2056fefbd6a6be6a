"""curate lineage: what a subset was made from."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from curation_assets.audit.origin import AGREES, lineage_svg, summary
from curation_assets.cli.common import HomeOption, console, errors_as_sentences, settings_from
from curation_assets.cli.diff import the_pool
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.stores.atomic import write_text_atomically


@errors_as_sentences
def lineage(
    subset: Annotated[str, typer.Argument(metavar="SUBSET", help="A policy, or any table (stage/name).")],
    pool: Annotated[str | None, typer.Option("--pool", help="Needed when several pools have run.")] = None,
    graph: Annotated[Path | None, typer.Option("--graph", help="Write the graph as SVG.")] = None,
    openlineage: Annotated[
        str | None, typer.Option("--openlineage", help="Send OpenLineage events to this URL, or append to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Every shard and edge, as JSON on standard output.")] = False,
    home: HomeOption = None,
) -> None:
    """Show shards, data versions, code and models behind a subset, checked against Dagster's own records."""
    from curation_assets.audit.openlineage_events import emit
    from curation_assets.defs.lineage import lineage_events, recorded_lineage

    settings = settings_from(home)
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    found = recorded_lineage(ctx, subset if "/" in subset else f"filtered/{subset}")
    if graph is not None:
        write_text_atomically(graph, lineage_svg(found, {stage: place for place, stage in enumerate(STAGES)}))
    sent = emit(lineage_events(ctx, found), openlineage) if openlineage is not None else None
    if json:
        content = {"pool": found.pool, "target": found.target, "nodes": found.nodes.to_dicts()}
        typer.echo(json_format.dumps(content | {"edges": found.edges.to_dicts()}, indent=1, ensure_ascii=False))
        return
    shown = summary(found)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("table", "shards", "rows", "data version", "code", "models", "dagster"):
        table.add_column(heading, justify="right" if heading in ("shards", "rows") else "left", overflow="fold")
    for row in shown.iter_rows(named=True):
        table.add_row(
            row["table"], str(row["shards"] or "–"), f"{row['rows']:,}", row["data_version"][:12], row["code"],
            row["models"], row["dagster"] + (f", {row['stale_inputs']} stale" if row["stale_inputs"] else ""),
        )  # fmt: skip
    console.print(table)
    agreeing = found.edges.filter(found.edges["dagster"] == AGREES).height
    console.print(f"Dagster's records agree on {agreeing} of {found.edges.height} inputs.", highlight=False)
    if graph is not None:
        console.print(f"Graph {graph}", highlight=False, soft_wrap=True)
    if sent is not None:
        console.print(f"{sent} OpenLineage events to {openlineage}", highlight=False, soft_wrap=True)
