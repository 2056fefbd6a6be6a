"""Dagster's storages: its own class of them, and the databases behind those of an instance."""

import importlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from curation_assets.foreign.guards import INSTANCE_TABLES


def own_sqlite_storage() -> Any:
    """The class that Dagster itself takes for `storage: sqlite`, whatever its name in this version."""
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:
        named: Any = instance.get_ref().storage_data
    return getattr(importlib.import_module(named.module_name), named.class_name)


@dataclass(frozen=True)
class Records:
    """Where an instance keeps its records."""

    folders: frozenset[Path]  # of SQLite files, and of what steps printed
    servers: tuple[tuple[sa.Engine, sa.MetaData], ...]  # databases elsewhere, with Dagster's own tables
    unknown: tuple[str, ...]  # what cannot be reached from here, in words


def records_of(instance: dg.DagsterInstance) -> Records:
    """Where the instance keeps runs, events, ticks and what steps printed."""
    folders: set[Path] = set()
    servers: list[tuple[sa.Engine, sa.MetaData]] = []
    unknown: list[str] = []
    storages: tuple[Any, ...] = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
    for storage, own_tables in zip(storages, _own_tables(), strict=True):
        connect = getattr(storage, "index_connection", None) or getattr(storage, "connect", None)
        engine = None
        if connect is not None:
            with connect() as connection:
                engine = connection.engine
        if engine is not None and engine.dialect.name == "sqlite":
            if engine.url.database:
                folders.add(Path(engine.url.database).parent)
        elif engine is not None and own_tables is not None:
            servers.append((engine, own_tables))
        else:
            unknown.append(f"what {type(storage).__name__} of Dagster's instance keeps")
    logs: Any = instance.compute_log_manager
    if hasattr(logs, "get_captured_local_path"):
        folders.add(Path(logs.get_captured_local_path(["any"], "out")).parent)
    elif type(logs).__name__ != "NoOpComputeLogManager":
        unknown.append(f"output of steps that {type(logs).__name__} keeps")
    return Records(frozenset(folders), tuple(servers), tuple(unknown))


def _own_tables() -> tuple[sa.MetaData | None, ...]:
    """Dagster's own tables of runs, of events and of ticks; a server may hold others' as well."""
    if not INSTANCE_TABLES.is_on():
        return None, None, None
    from dagster._core.storage.runs.schema import RunStorageSqlMetadata
    from dagster._core.storage.schedules.schema import ScheduleStorageSqlMetadata

    return RunStorageSqlMetadata, event_log_tables(), ScheduleStorageSqlMetadata


def event_log_tables() -> sa.MetaData:
    """Dagster's own tables of events. Upstream: instances that name their tables, as a backup needs, too."""
    from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata

    return SqlEventLogStorageMetadata
