"""curate drift: freeze a canary, see what drifted, accept a new build."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, PoolArgument, settings_from, show, show_table
from curation_assets.core.table_names import DRIFT
from curation_assets.flow.context import PoolContext
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.shard_store import ShardStore


@command("drift freeze", "Why, and what if")
def freeze(
    pool: PoolArgument,
    out: Annotated[Path, typer.Option("--out", help="New Parquet file.")],
    size: Annotated[int, typer.Option(help="Samples to draw.")] = 200,
    home: HomeOption = None,
) -> None:
    """Draw samples of a pool and store them with their hashes.

    Name the file in the pool's option `canary`.
    """
    from curation_assets.scoring.canary import freeze_canary

    canary = freeze_canary(PoolContext.open(settings_from(home), pool).store, out.absolute(), size)
    show(f"{canary.rows.height} samples in {out}, sha256 {canary.sha256[:16]}; in the pool's declaration:")
    show(f"options: {{canary: {out.absolute()}}}")


@command("drift show", "Why, and what if")
def show_drift(pool: PoolArgument, home: HomeOption = None) -> None:
    """Show every statistic with its limits; exit 1 when one is outside."""
    drift = _store(PoolContext.open(settings_from(home), pool)).read(DRIFT)
    rows = []
    for row in drift.iter_rows(named=True):
        word = Text("within", "green") if row["is_within"] else Text("outside", "red")
        numbers = (*(f"{row[name]:.4g}" for name in ("value", "low", "high")), str(row["samples"]))
        rows.append((row["method"], row["statistic"], *numbers, word, row["build"], row["reference_build"]))
    headings = ("method", "statistic", "value", "low", "high", "n", "", "build", "reference")
    show_table(headings, rows, left=("method", "statistic", "", "build", "reference"))
    if not drift["is_within"].all():
        raise typer.Exit(1)


@command("drift accept", "Why, and what if")
def accept(
    pool: PoolArgument,
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; default: all.")] = None,
    home: HomeOption = None,
) -> None:
    """Take the builds in force as the references of later builds."""
    from curation_assets.scoring import canary

    taken = canary.accept(_store(PoolContext.open(settings_from(home), pool)), methods or [])
    for method, build in taken.items():
        show(f"{method}: reference is now build {build}; `curate run {pool}` compares with it")


def _store(ctx: PoolContext) -> ShardStore:
    """The pool's tables. Raises ValueError whose message states how a pool gets a canary."""
    if ctx.store.manifest(DRIFT) is None:
        pool = ctx.pool.name
        freeze_it = f"`curate drift freeze {pool} --out FILE`, name it in the pool's option `canary`, then "
        first = "" if SignalsOptions.of(ctx).canary else freeze_it
        raise ValueError(f"pool {pool!r} has no canary scores yet: {first}`curate run {pool}`")
    return ctx.store
