"""Dagster's SQLite storage with one transaction for the events of many shards, and files that stay open
(docs/decisions/0035).

A table of 1,280 shards ends with 1,280 materialisation events. Where DAGSTER_EVENT_BATCH_SIZE is
set, Dagster hands them over in batches, which its Postgres storage writes as such. Its SQLite
storage takes them one by one: for each it opens, synchronises and closes two files, and compiles
its statements anew. For the file of a new run it reads all of Dagster's migrations, twice. This
module is imported where EVENT_BATCHES is on.

Upstream: `SqliteEventLogStorage.store_event_batch` in one transaction per file, as SqlEventLogStorage has it for
Postgres, and an engine per file. DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS would halve the
events, but then no partition of a run that fails is shown as failed (docs/decisions/0035).
"""

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import dagster as dg
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from dagster._core.storage.sql import get_alembic_config
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, SqliteEventLogStorage
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DatabaseError

from curation_assets.foreign.dagster_storage import event_log_tables

ASSET_EVENTS = {
    dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
    dg.DagsterEventType.ASSET_OBSERVATION,
}  # fmt: skip
EVENTS = event_log_tables().tables["event_logs"]
BUSY_SECONDS = 30  # as Dagster: how long a connection waits for a file that another process writes
OPEN_FILES = 4  # the index over all runs, the run in progress, and two runs that somebody looks at


@functools.cache
def _migrations() -> ScriptDirectory:
    """Dagster's migrations of its storage, read once per process."""
    return ScriptDirectory.from_config(get_alembic_config(str(sys.modules[SqliteEventLogStorage.__module__].__file__)))


class BatchedSqliteEventLogStorage(SqliteEventLogStorage):
    """Dagster's own storage, with batches of events in one transaction, and files that stay open."""

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        self._engines: dict[str, Engine] = {}  # by file, the one used last at the end
        self._tables: set[str] = set()  # tables that the index is known to have: Dagster asks before each use
        weakref.finalize(self, _close, self._engines)  # at the latest when the process ends
        super().__init__(base_dir, inst_data)

    @contextlib.contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        """As Dagster does it, but the connection stays open. One file at a time, in a transaction."""
        with self._db_lock:
            engine = self._engine_of(shard)
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _engine_of(self, shard: str) -> Engine:
        engine = self._engines.pop(shard, None)
        if engine is not None and not os.path.exists(self.path_for_shard(shard)):  # removed by somebody else
            engine.dispose()
            engine = None
            self._initialized_dbs.discard(shard)
        if engine is None:
            engine = create_engine(
                self.conn_string_for_shard(shard),
                pool_size=1,
                connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
            )
        self._engines[shard] = engine
        while len(self._engines) > OPEN_FILES:
            self._engines.pop(next(iter(self._engines))).dispose()
        return engine

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table. A yes is remembered: Dagster would open the file for each look."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def wipe(self) -> None:
        """Close and remove the files of all runs, and empty the index."""
        _close(self._engines)
        super().wipe()

    def dispose(self) -> None:
        """Close the files."""
        _close(self._engines)
        super().dispose()

    def _initdb(self, engine: Engine, for_index_shard: bool = False) -> None:
        """As Dagster does it, but the file of a new run is made without reading migrations again."""
        if not for_index_shard and not os.path.exists(str(engine.url.database)):
            # DatabaseError: another process makes the same file
            with contextlib.suppress(DatabaseError), engine.connect() as connection:
                event_log_tables().create_all(connection)
                connection.execute(text("PRAGMA journal_mode=WAL;"))
                MigrationContext.configure(connection).stamp(_migrations(), "head")
                connection.commit()
                return
        super()._initdb(engine, for_index_shard)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events of assets in one transaction per file, others (planned checks) one by one."""
        for run_id, of_run in groupby(events, key=lambda event: event.run_id):
            of_assets: list[dg.EventLogEntry] = []
            for event in of_run:
                if event.dagster_event_type in ASSET_EVENTS:
                    of_assets.append(event)
                else:
                    self.store_event(event)
            if of_assets:
                self._store_asset_events(run_id, of_assets)

    def _store_asset_events(self, run_id: str, events: Sequence[dg.EventLogEntry]) -> None:
        """As `store_event` does with each: into the file of the run, then into the index over all runs."""
        rows = [self._event_to_row(event) for event in events]
        insert = EVENTS.insert()
        with self.run_connection(run_id) as connection:
            connection.execute(insert, rows)
        with self.index_transaction() as connection:
            in_order = insert.returning(EVENTS.c.id, sort_by_parameter_order=True)
            ids = [int(row[0]) for row in connection.execute(in_order, rows)]
            self._store_asset_event_tags(connection, events, ids)
            last = {(row["asset_key"], row["dagster_event_type"]): at for at, row in enumerate(rows)}
            for at in sorted(last.values()):  # the index has a row per asset, with the last event of each type
                self._store_asset_event(connection, events[at], ids[at])


def _close(engines: dict[str, Engine]) -> None:
    while engines:
        engines.popitem()[1].dispose()


class BatchedSqliteStorage(DagsterSqliteStorage):
    """Dagster's SQLite storage with this event log, for `storage: custom:` of a dagster.yaml."""

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        super().__init__(base_dir, inst_data)
        self._event_log_storage = BatchedSqliteEventLogStorage(self._event_log_storage._base_dir)  # type: ignore[has-type]

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "BatchedSqliteStorage":
        """Called by Dagster."""
        return cls.from_local(inst_data=inst_data, **config_value)
