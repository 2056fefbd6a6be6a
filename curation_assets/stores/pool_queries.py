"""DuckDB over a whole pool: the one place where a connection for it is opened, with a bound on its memory."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from curation_assets.core.settings import resource_path
from curation_assets.stores.atomic import remove_path, remove_stale
from curation_assets.stores.catalog import add_views, can_be_interrupted
from curation_assets.stores.shard_store import SPILLED, ShardStore
from curation_assets.stores.temporary import temporary_path

if TYPE_CHECKING:
    import duckdb

MEMORY_BYTES = 3 << 28  # that DuckDB may take, or half of the machine's where that is less; the rest it writes to disk
THREADS = 2
SQL_FOLDER = "dbt_like_sql/pool"


@contextmanager
def bounded(folder: Path) -> Iterator["duckdb.DuckDBPyConnection"]:
    """A connection that keeps to MEMORY_BYTES and writes the rest to `folder`; rows come in the order of the files.

    Raises KeyboardInterrupt where Ctrl+C comes while DuckDB works.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{min(MEMORY_BYTES, _machine_bytes() // 2)}B",
        "temp_directory": str(folder),
        "threads": THREADS,
        "preserve_insertion_order": True,
    }
    with duckdb.connect(config=config) as connection, can_be_interrupted(connection):
        yield connection


@contextmanager
def open_whole_pool(store: ShardStore, assets: Sequence[str]) -> Iterator["duckdb.DuckDBPyConnection"]:
    """A connection (`bounded`) with a view `<stage>.<name>` per asset, over all shards.

    Raises MissingTableError for an asset that is not stored, and as `bounded`.
    """
    folder = temporary_path(store.root / SPILLED)
    remove_stale(store.root / SPILLED)
    try:
        with bounded(folder) as connection:
            add_views(connection, store, assets)
            yield connection
    finally:
        remove_path(folder)


def statement(name: str) -> str:
    """The text of a statement over whole pools, `dbt_like_sql/pool/NAME.sql`."""
    path: Path = resource_path(SQL_FOLDER) / f"{name}.sql"
    return path.read_text(encoding="utf-8")


def _machine_bytes() -> int:
    """Memory of the machine, or of the control group that this process is in."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(Path(path).read_text()))
    return min(sizes)
