"""Counts over a ledger and its provenance: the statements of dbt_like_sql/summary/.

Each is one DuckDB statement over 'ledger/*.parquet', 'provenance.parquet' and, for how sources were obtained,
'release.json', so that it gives the same table when it is pasted into a DuckDB that was started in a release's folder.
Of a pool the names stand for its tables.
"""

import functools
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from curation_assets.audit.release_provenance import OF_RELEASES
from curation_assets.core.settings import resource_path
from curation_assets.flow.sql import COUNTS, SQL_FOLDER, SqlTest, read_header
from curation_assets.stores.catalog import can_be_interrupted
from curation_assets.stores.releases import LEDGER_FILES, PROVENANCE_FILE, RELEASE_FILE, Release

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Count:
    """One statement."""

    name: str
    grain: str
    tests: tuple[SqlTest, ...]
    text: str  # the file as it is

    def text_of(self, release: Release) -> str:
        """The statement as the folder of a release takes it."""
        return self.text.replace(f"'{LEDGER_FILES}'", f"'{release.ledger_name}'")


@functools.cache
def statements() -> dict[str, Count]:
    """Every statement by its name. Raises SqlModelError for a header that breaks the rules of SQL models."""
    found = {}
    for path in sorted((resource_path(SQL_FOLDER) / COUNTS).glob("*.sql")):
        text = path.read_text(encoding="utf-8").strip()
        header = read_header(text)
        found[path.stem] = Count(path.stem, header["grain"], header["tests"], text)
    return found


MEMORY = "512MB"  # that DuckDB may take; what it joins beyond that goes to a temporary folder
Relation = Path | Sequence[Path] | pl.DataFrame
_SOURCES = pl.List(pl.Struct({"name": pl.String(), "obtained": pl.String()}))


def counts(
    ledger: Relation,
    provenance: Relation,
    names: Collection[str] | None = None,
    *,
    sources: Sequence[Mapping[str, Any]] = (),
) -> dict[str, pl.DataFrame]:
    """Name of each statement (of `names`, where given) → its table, in the order that it states.

    `ledger`: of one policy (audit/ledger.py); `provenance`: a row for each of its rows (stores/provenance.py). Parquet
    files (several where they are shards), or frames that have the columns which the statements name. `sources`: as the
    pool declares them, with name and obtained; without any nobody has declared a source, and `domains` is of all kept
    rows. Raises ValueError for a statement whose table breaks a test of its header, and where the rows of the two do
    not correspond.
    """
    import duckdb

    with (
        tempfile.TemporaryDirectory(prefix="counts-") as folder,
        duckdb.connect(config={"memory_limit": MEMORY, "temp_directory": folder}) as connection,
        can_be_interrupted(connection),
    ):
        for name, relation in ((LEDGER_FILES, ledger), (PROVENANCE_FILE, provenance)):
            _name_relation(connection, name, relation)
        declared = [{"name": one["name"], "obtained": one.get("obtained")} for one in sources]
        about = pl.DataFrame({"about": [{"sources": declared}]}, schema={"about": pl.Struct({"sources": _SOURCES})})
        connection.from_arrow(about.to_arrow()).create_view(RELEASE_FILE)
        tables = {
            name: connection.sql(count.text).pl()
            for name, count in statements().items()
            if names is None or name in names
        }
        _check_rows(connection)
    for name, table in tables.items():
        broken = [str(test) for test in statements()[name].tests if test.broken(table).height]
        if broken:
            raise ValueError(f"the counts {name!r} break {', '.join(broken)}: ledger or provenance is not what it was")
    return tables


def _name_relation(connection: "duckdb.DuckDBPyConnection", name: str, relation: Relation) -> None:
    if isinstance(relation, pl.DataFrame):
        named = connection.from_arrow(relation.to_arrow())
    else:
        paths = [relation] if isinstance(relation, Path) else relation
        named = connection.read_parquet([str(path) for path in paths], hive_partitioning=False)
    if name == PROVENANCE_FILE:  # of a pool, or of a release that an earlier version made
        kinds = {name: "bigint" if kind.is_integer() else "varchar" for name, kind in OF_RELEASES.items()}
        absent = [f"null::{kind} as {name}" for name, kind in kinds.items() if name not in named.columns]
        named = named.select(", ".join(["*", *absent]))
    named.create_view(name)


def _check_rows(connection: "duckdb.DuckDBPyConnection") -> None:
    """Raise ValueError unless ledger and provenance have the same rows."""
    keys = "select shard, source_row from"
    sides = (f"{keys} '{LEDGER_FILES}' except all {keys} '{PROVENANCE_FILE}'",
             f"{keys} '{PROVENANCE_FILE}' except all {keys} '{LEDGER_FILES}'")  # fmt: skip
    more = [len(connection.sql(f"{side} limit 1").fetchall()) for side in sides]
    if any(more):
        raise ValueError(
            f"{LEDGER_FILES} and {PROVENANCE_FILE} are not of the same rows: each row of a ledger has one of provenance"
        )
