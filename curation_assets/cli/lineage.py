"""curate show lineage: what a subset was made from."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.audit.ledger import verdict_table
from curation_assets.audit.origin import AGREES, lineage_svg, summary
from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, PoolOption, settings_from, show, show_json, show_table
from curation_assets.cli.diff import the_pool
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.stores.atomic import check_new
from curation_assets.stores.documents import save_text


@command("show lineage", "Why, and what if")
def lineage(
    subset: Annotated[str, typer.Argument(metavar="SUBSET", help="A policy, or any table (stage/name).")],
    pool: PoolOption = None,
    graph: Annotated[Path | None, typer.Option("--graph", help="Write the graph as SVG.")] = None,
    openlineage: Annotated[
        str | None, typer.Option("--openlineage", help="Send OpenLineage events to this URL, or append to this file.")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show shards, data versions, code and models that made a subset.

    Checked against Dagster's own records.
    """
    from curation_assets.defs.lineage import lineage_events, recorded_lineage

    if graph is not None:
        check_new(graph)
    settings = settings_from(home)
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    recorded = recorded_lineage(ctx, subset if "/" in subset else verdict_table(ctx.store, subset))
    if graph is not None:
        drawn = lineage_svg(recorded, {stage: position for position, stage in enumerate(STAGES)})
        save_text(graph, drawn, is_new=True)
    sent = None
    if openlineage is not None:
        events = lineage_events(ctx, recorded)
        from curation_assets.audit.openlineage_events import emit  # of the extra `lineage`

        sent = emit(events, openlineage)
    if as_json:
        content = {"pool": recorded.pool, "target": recorded.target, "nodes": recorded.nodes.to_dicts()}
        show_json(content | {"edges": recorded.edges.to_dicts()})
        return
    rows = []
    for row in summary(recorded).iter_rows(named=True):
        stale = f", {row['stale_inputs']} stale" if row["stale_inputs"] else ""
        rows.append(
            (
                row["table"], str(row["shards"] or "–"), f"{row['rows']:,}", row["data_version"][:12], row["code"],
                row["models"], row["dagster"] + stale,
            )
        )  # fmt: skip
    headings = ("table", "shards", "rows", "data version", "code", "models", "dagster")
    show_table(headings, rows, left=[name for name in headings if name not in ("shards", "rows")])
    agreeing = recorded.edges.filter(recorded.edges["dagster"] == AGREES).height
    show(f"Dagster's records agree on {agreeing} of {recorded.edges.height} inputs.")
    if graph is not None:
        show(f"Graph {graph}")
    if sent is not None:
        show(f"{sent} OpenLineage events to {openlineage}")
