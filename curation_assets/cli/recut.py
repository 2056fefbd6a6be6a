"""curate recut: fit the frozen cuts anew and report which verdicts flip."""

import json as json_format
from typing import Annotated, Any

import typer
from rich.table import Table

from curation_assets.cli.common import HomeOption, ProfileOption, console, errors_as_sentences, settings_from
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.refit import begin_recut, finish_recut, unfinished


@errors_as_sentences
def recut(
    pool: Annotated[str, typer.Argument(help="A pool that has run.")],
    policy: Annotated[list[str] | None, typer.Option("--policy", help="Only this policy (repeat).")] = None,
    fits: Annotated[
        bool, typer.Option("--fits", help="Also length statistics, fusion weights and students (takes long).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The flip report as JSON on standard output.")] = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Fit the cuts of a pool on what it holds now. Until then, shards that come or go change no other verdict."""
    from curation_assets.defs.launch import run_pool

    settings = settings_from(home, profile)
    ctx = PoolContext.open(settings, pool)
    tables = tables_of(ctx)
    begun = unfinished(ctx) or begin_recut(ctx, tables, policy or None, with_fits=fits)
    # Everything that can change up to the verdicts; reports and trained models wait for `curate run`.
    wanted = [name for name, table in tables.items() if not STAGES[table.stage].is_evaluation]
    run_pool(settings, pool, tables=wanted)
    report = finish_recut(ctx, begun)
    if json:
        typer.echo(json_format.dumps(report, indent=1))
        return
    _show(report)
    console.print(f"\nWritten to {begun.folder}; `curate run {pool}` brings the report up to date.", soft_wrap=True)


def _show(report: dict[str, Any]) -> None:
    table = Table(title="Verdicts that flipped", title_justify="left", box=None, pad_edge=False)
    for heading in ("policy", "threshold before", "after", "kept before", "after", "flips"):
        table.add_column(heading, justify="left" if heading in ("policy", "flips") else "right")
    for one in report["policies"]:
        cuts = [one[side]["cuts"][-1]["threshold"] for side in ("cut_before", "cut_after")]
        flipped = ", ".join(f"{f['before']} → {f['after']}: {f['rows']:,}" for f in one["flips"]) or "none"
        table.add_row(
            one["policy"],
            *("–" if cut is None else f"{cut:.6g}" for cut in cuts),
            f"{one['kept_before']:,}",
            f"{one['kept_after']:,}",
            flipped,
        )
    console.print(table)
