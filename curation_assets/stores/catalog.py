"""DuckDB's view of the tables: one catalogue file over all pools, and in-memory connections over one."""

import atexit
import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from curation_assets.core.settings import POOL_NAME
from curation_assets.core.stages import STAGES
from curation_assets.stores.atomic import replacing
from curation_assets.stores.parquet import ESCAPED_SQL, path_sql, shards_sql, table_sql, text_sql
from curation_assets.stores.shard_store import DATA_FILE, ShardStore

# Imported where it is used: Dagster and torch together keep functions of this package past the interpreter's end, and
# DuckDB's binding prints a page about those of its objects that these reach.
if TYPE_CHECKING:
    import duckdb

logger = logging.getLogger(__name__)

CATALOG_FILE = "catalog.duckdb"
#: The catalogue's macro for the folder that it lies in, so that a home may be copied or moved. Where the file of a
#: connection lies is in the default of temp_directory alone. Where that is set, or the catalogue is attached, the
#: variable curation_home names the folder; without it a query fails rather than reads the tables of another home.
_HOME = r"""coalesce(
    getvariable('curation_home') || '/',
    nullif(regexp_extract(current_setting('temp_directory'), '^(.*/)catalog\.duckdb\.tmp$', 1), ''),
    error('this connection does not show where the catalogue lies; first: set variable curation_home = ITS FOLDER')
)"""
_INTERRUPTED = "Query interrupted"  # what DuckDB makes of a signal that it sees by itself, as a RuntimeError
_HOME_MACRO = f"create macro main.curation_home() as {ESCAPED_SQL.format(path=_HOME)}"


def read_table_sql(
    store: ShardStore,
    asset: str,
    shards: Sequence[str] | None = None,
    *,
    path_sql: Callable[[Path], str] = path_sql,
) -> str:
    """DuckDB expression that reads an asset, shard by shard or whole. New shards show without a new expression.

    Of a home in a bucket the files are fetched, and each is named: one that leaves the cache is an error, and no gap.
    `shards`: only these, of an asset that has shards. `path_sql`: how a path is written.
    """
    if store.table_path(asset).is_file():
        return table_sql(path_sql(store.table_path(asset)))
    folder = store.asset_path(asset)
    if store.objects is not None:
        shards = store.partitions(asset) if shards is None else shards
        store.fetch_tables(asset, shards)
    within = [f"/shard={shard}/{DATA_FILE}" for shard in (["*"] if shards is None else shards)]
    paths = [f"{path_sql(folder)} || {text_sql(path)}" for path in within]
    return shards_sql(folder, paths)


def view_sql(pool: str, asset: str) -> str:
    """A table's view as a query names it, whatever the pool is called: `"scenes".signals_icc`."""
    return f'"{pool}".{asset.replace("/", "_")}'


def stored_tables(store: ShardStore) -> list[str]:
    """Assets of the store that have at least one table file, in flow order."""
    stored = []
    for stage in STAGES:
        for folder in sorted((store.root / stage).glob("[a-z0-9_]*")):
            asset = f"{stage}/{folder.name}"
            if not folder.is_symlink() and (store.table_path(asset).is_file() or store.partitions(asset)):
                stored.append(asset)
    return stored


def rebuild_catalog(home: Path) -> Path:
    """Write `home`/catalog.duckdb: a view `<pool>.<stage>_<name>` per table, e.g. `scenes.signals_clip_score`.

    Each policy's ledger is the view `<pool>.ledger_<policy>`.

    A view that cannot be made, such as of a damaged file, is left out with a warning; the others are made.

    Built aside and swapped in one step: a connection to the old file goes on reading it. Views read the Parquet
    files of the home in which the catalogue lies when they are queried: only a new table (not a new shard) needs a
    rebuild, and a copied home none. Returns the path.
    """
    import duckdb

    home = Path(home).absolute()
    catalog = home / CATALOG_FILE

    def in_home(path: Path) -> str:
        return f"main.curation_home() || {text_sql(path.absolute().relative_to(home).as_posix())}"

    with replacing(catalog) as temporary:
        try:
            with duckdb.connect(str(temporary), config={"temp_directory": f"{catalog}.tmp"}) as connection:
                connection.execute(_HOME_MACRO)
                for pool_folder in sorted((home / "work").glob("*")):
                    if not POOL_NAME.fullmatch(pool_folder.name):
                        continue
                    pool, store = pool_folder.name, ShardStore(pool_folder)
                    stored = stored_tables(store)
                    views = {
                        view_sql(pool, asset): f"select * from {read_table_sql(store, asset, path_sql=in_home)}"
                        for asset in stored
                    }
                    for asset in (one for one in stored if f"{one}_cut" in stored):
                        policy = asset.partition("/")[2]
                        views[view_sql(pool, f"ledger_{policy}")] = f"select * from {view_sql(pool, asset)}"
                    made = [f"view {name} as {query}" for name, query in views.items()]
                    for sql in (f'schema if not exists "{pool}"', *made):
                        try:
                            connection.execute(f"create {sql}")
                        except duckdb.Error as error:  # a name of DuckDB's own, a damaged file: the others are made
                            why = str(error).splitlines()[0]
                            logger.warning("no %s in %s: %s", sql.partition(" as ")[0], catalog, why)
        finally:  # on a full disk DuckDB leaves its log
            temporary.with_name(temporary.name + ".wal").unlink(missing_ok=True)
    return catalog


@contextmanager
def can_be_interrupted(connection: "duckdb.DuckDBPyConnection") -> Iterator[None]:
    """While inside, `interrupt_queries` ends what the connection computes. Raises KeyboardInterrupt where it did, or
    where DuckDB saw a signal by itself, of which it makes a RuntimeError.
    """
    import duckdb

    _computing.append(connection)
    try:
        yield
    except (duckdb.InterruptException, RuntimeError) as error:
        if isinstance(error, duckdb.InterruptException) or str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from error
        raise
    finally:
        _computing.remove(connection)


def interrupt_queries() -> None:
    """End what DuckDB computes in this process; called from another thread. By itself it looks for a signal between two
    pieces of work, of which one may last for hours.
    """
    import duckdb

    for connection in list(_computing):
        with contextlib.suppress(duckdb.Error):  # closed meanwhile
            connection.interrupt()


_computing: list["duckdb.DuckDBPyConnection"] = []


@contextmanager
def open_pool(
    store: ShardStore,
    assets: Sequence[str] | None = None,
    *,
    shards: Sequence[str] | None = None,
    threads: int | None = None,
) -> Iterator["duckdb.DuckDBPyConnection"]:
    """An in-memory connection with a view `<stage>.<name>` per asset (`signals.clip_score`), for SQL models.

    `assets`: None for all that are stored. `shards`: of assets with shards only these. Raises MissingTableError for
    one that is not, and KeyboardInterrupt where Ctrl+C comes while DuckDB works.
    """
    name = f"pool_{next(_NUMBERS)}"
    with _instance(threads, os.getpid()).cursor() as connection:
        connection.execute(f"attach ':memory:' as {name}; use {name}")
        try:
            add_views(connection, store, stored_tables(store) if assets is None else assets, shards)
            with can_be_interrupted(connection):
                yield connection
        finally:
            connection.execute(f"use memory; detach {name}")


def add_views(
    connection: "duckdb.DuckDBPyConnection",
    store: ShardStore,
    assets: Sequence[str],
    shards: Sequence[str] | None = None,
) -> None:
    """A view `<stage>.<name>` per asset, as of `open_pool`."""
    for stage in STAGES:
        connection.execute(f'create schema "{stage}"')
    for asset in assets:
        is_whole = shards is None or store.table_path(asset).is_file()
        store.scan(asset, None if is_whole else shards)  # raises MissingTableError: what to materialise
        stage, table = asset.split("/")
        source = read_table_sql(store, asset, shards)
        connection.execute(f'create view "{stage}"."{table}" as select * from {source}')


_NUMBERS = itertools.count()


@functools.cache
def _instance(threads: int | None, process: int) -> "duckdb.DuckDBPyConnection":
    """The DuckDB of a process, whose memory is used again: to start one and to give its memory back for every few
    shards took a third of the time of fused tables. `process`: one that is forked starts its own."""
    import duckdb

    atexit.register(_instance.cache_clear)
    return duckdb.connect(config={} if threads is None else {"threads": threads})
