"""Write the tables of docs/operator/format_on_disk.md from a small pool of scenes, which it runs: a minute or two."""

import sys
import tempfile
from pathlib import Path

import polars as pl

from curation_assets.defs.launch import run_pool
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.shard_store import ShardStore

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.conftest import declare_tiny_pool

PAGE = Path(__file__).parents[1] / "operator" / "format_on_disk.md"
BEGIN, END = "<!-- tables: python docs/contributor/make_format.py -->", "<!-- end of tables -->"

Row = tuple[str, str, str]  # names of tables, what a file is of, columns


def table_rows(store: ShardStore) -> list[Row]:
    """Tables of a pool with the same grain and columns in one row, in flow order."""
    alike: dict[tuple[str, str], list[str]] = {}
    for asset in stored_tables(store):
        partitions = store.partitions(asset)
        path = store.table_path(asset, partitions[0] if partitions else None)
        is_of_shards = bool(partitions) and partitions[0].startswith(f"{store.root.name}-")
        grain = "pool" if not partitions else "shard" if is_of_shards else "training key"
        columns = ", ".join(f"`{name}` {_shown(kind)}" for name, kind in pl.read_parquet_schema(path).items())
        alike.setdefault((grain, columns), []).append(asset)
    return [(", ".join(f"`{name}`" for name in names), grain, columns) for (grain, columns), names in alike.items()]


def _shown(kind: pl.DataType) -> str:
    """A type in short: `List(String)` as `list[string]`, a category by its kind alone."""
    if isinstance(kind, pl.List):
        return f"list[{_shown(kind.inner)}]"  # type: ignore[arg-type]
    if isinstance(kind, pl.Array):
        return f"array[{_shown(kind.inner)}]"  # type: ignore[arg-type]
    return type(kind).__name__.lower()


def with_tables(page: str, rows: list[Row]) -> str:
    """The page with these rows between its marks."""
    lines = ["| table | one file per | columns |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    before, _, rest = page.partition(BEGIN)
    return before + "\n".join([BEGIN, "", *lines, "", END]) + rest.partition(END)[2]


def main() -> None:
    """Rewrite the page."""
    with tempfile.TemporaryDirectory() as folder:
        settings = declare_tiny_pool(Path(folder))
        run_pool(settings, "tiny")
        rows = table_rows(ShardStore(settings.work("tiny")))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
