"""curate drift: freeze a canary, see what drifted, accept a new build."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from curation_assets.cli.common import HomeOption, console, errors_as_sentences, settings_from
from curation_assets.flow.context import PoolContext
from curation_assets.stores.shard_store import ShardStore

app = typer.Typer(help="Canary scores of every model build, and their drift.", no_args_is_help=True)
PoolArgument = Annotated[str, typer.Argument(help="A declared pool.")]


@app.command("freeze")
@errors_as_sentences
def freeze(
    pool: PoolArgument,
    out: Annotated[Path, typer.Option("--out", help="New Parquet file.")],
    size: Annotated[int, typer.Option(help="Samples to draw.")] = 200,
    home: HomeOption = None,
) -> None:
    """Draw samples of a pool and store them with their hashes; name the file in the pool's option `canary`."""
    from curation_assets.scoring.canary import freeze_canary

    canary = freeze_canary(PoolContext.open(settings_from(home), pool).store, out.absolute(), size)
    console.print(
        f"{canary.rows.height} samples in {out}, sha256 {canary.sha256[:16]}; in the pool's declaration:\n"
        f"options: {{canary: {out.absolute()}}}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("show")
@errors_as_sentences
def show(pool: PoolArgument, home: HomeOption = None) -> None:
    """Show every statistic with its limits; exit 1 when one is outside."""
    drift = _store(PoolContext.open(settings_from(home), pool)).read("signals/drift")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("method", "statistic", "value", "low", "high", "", "build", "reference"):
        table.add_column(heading, justify="right" if heading in ("value", "low", "high") else "left")
    for row in drift.iter_rows(named=True):
        word = "[green]within[/]" if row["is_within"] else "[red]outside[/]"
        numbers = (f"{row[name]:.4g}" for name in ("value", "low", "high"))
        table.add_row(row["method"], row["statistic"], *numbers, word, row["build"], row["reference_build"])
    console.print(table)
    if not drift["is_within"].all():
        raise typer.Exit(1)


@app.command("accept")
@errors_as_sentences
def accept(
    pool: PoolArgument,
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; default: all.")] = None,
    home: HomeOption = None,
) -> None:
    """Take the builds in force as the references that later builds are compared with."""
    from curation_assets.scoring import canary

    taken = canary.accept(_store(PoolContext.open(settings_from(home), pool)), methods or [])
    for method, build in taken.items():
        console.print(
            f"{method}: reference is now build {build}; `curate run {pool}` compares with it", highlight=False
        )


def _store(ctx: PoolContext) -> ShardStore:
    """The pool's tables. Raises ValueError that says how a pool gets a canary."""
    if ctx.store.manifest("signals/drift") is None:
        pool = ctx.pool.name
        freeze_it = f"`curate drift freeze {pool} --out FILE`, name it in the pool's option `canary`, then "
        first = "" if ctx.options.canary else freeze_it
        raise ValueError(f"pool {pool!r} has no canary scores yet: {first}`curate run {pool}`")
    return ctx.store
