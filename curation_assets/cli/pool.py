"""curate pool: declare one's own data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from curation_assets.cli.common import HomeOption, console, errors_as_sentences, settings_from
from curation_assets.flow.context import PoolContext
from curation_assets.operations.removed_shards import remove_shards
from curation_assets.stores.pools.declaration import add_pool, list_pools, load_pool
from curation_assets.stores.pools.shards import discover_shards

app = typer.Typer(help="Declare and list pools.", no_args_is_help=True)


@app.command("add")
@errors_as_sentences
def add(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits, underscores.")],
    path: Annotated[
        Path,
        typer.Argument(help="Folder of img2dataset/webdataset tars, or a parquet/csv/tsv of url + caption."),
    ],
    home: HomeOption = None,
) -> None:
    """Declare a pool; its kind and columns are recognised from what lies at PATH."""
    settings = settings_from(home)
    pool = add_pool(settings, name, path)
    shards = discover_shards(pool, settings)
    console.print(
        f"Pool {pool.name}: {pool.kind}, {len(shards)} shards, declared in {settings.pools_root / (name + '.yaml')}",
        highlight=False,
    )
    console.print(f"Next: curate run {pool.name}", highlight=False)


@app.command("list")
@errors_as_sentences
def list_all(home: HomeOption = None) -> None:
    """Show the declared pools."""
    settings = settings_from(home)
    table = Table(box=None, pad_edge=False)
    for heading in ("pool", "kind", "shards", "source"):
        table.add_column(heading)
    for name in list_pools(settings):
        pool = load_pool(settings, name)
        table.add_row(name, pool.kind, str(len(discover_shards(pool, settings))), pool.source or "planted")
    console.print(table)


@app.command("remove-shard")
@errors_as_sentences
def remove_shard(
    name: Annotated[str, typer.Argument(help="A declared pool.")],
    shards: Annotated[list[str], typer.Argument(help="Shards whose source is gone; `curate run` names them.")],
    home: HomeOption = None,
) -> None:
    """Delete all tables of shards that the pool's source no longer has. No other sample's verdict changes."""
    from curation_assets.defs.launch import prepare_instance  # Dagster takes seconds to import

    settings = settings_from(home)
    count = remove_shards(PoolContext.open(settings, name), shards)
    with prepare_instance(settings) as instance:
        for shard in shards:
            instance.delete_dynamic_partition(name, shard)
    console.print(f"{count} tables of {len(shards)} shards removed.", highlight=False)
    console.print(
        f"Next: curate run {name} (subsets and ledgers; cuts stay as they are until curate recut {name})",
        highlight=False,
    )
