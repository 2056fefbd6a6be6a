"""Events written in batches are those that Dagster's own storage writes one by one."""

import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log import SqliteEventLogStorage
from sqlalchemy import text

from curation_assets.core.settings import resource_path
from curation_assets.foreign.dagster_event_log import OPEN_FILES, BatchedSqliteEventLogStorage

KEYS = [f"shard-{number}" for number in range(7)]
SHARDS = dg.DynamicPartitionsDefinition(name="shards")
OWN_STORAGE = resource_path("infra/dagster.yaml").read_text()


def asset_of(name: str, deps: Sequence[dg.AssetsDefinition] = ()) -> dg.AssetsDefinition:
    @dg.asset(
        name=name,
        deps=list(deps),
        partitions_def=SHARDS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=[dg.AssetCheckSpec("is_well", asset=name)],
    )
    def table(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        for key in context.partition_keys:
            context.add_asset_metadata({"rows": KEYS.index(key)}, partition_key=key)
        return dg.MaterializeResult(
            data_version=dg.DataVersion("1"), check_results=[dg.AssetCheckResult(check_name="is_well", passed=True)]
        )

    return table


FIRST = asset_of("first")
SECOND = asset_of("second", [FIRST])


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "4")  # 7 shards: a full batch and the rest
    return 4


def instance_in(home: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    home.mkdir()
    (home / "dagster.yaml").write_text(config)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    return dg.DagsterInstance.from_config(str(home))


def run(instance: dg.DagsterInstance) -> str:
    instance.add_dynamic_partitions("shards", KEYS)
    job = dg.Definitions(assets=[FIRST, SECOND], jobs=[dg.define_asset_job("both")]).resolve_job_def("both")
    tags = {"dagster/asset_partition_range_start": KEYS[0], "dagster/asset_partition_range_end": KEYS[-1]}
    return job.execute_in_process(instance=instance, tags=tags).run_id


def stored(home: Path, run_id: str) -> dict[str, list[tuple[object, ...]]]:
    """What both files hold, without what every run has anew: run id, times, and where a row lies."""
    events = "select dagster_event_type, step_key, asset_key, partition from event_logs order by 1, 2, 3, 4"
    found: dict[str, list[tuple[object, ...]]] = {}
    for name in (run_id, "index"):
        with sqlite3.connect(home / "history" / "runs" / f"{name}.db") as connection:
            found[name.replace(run_id, "run")] = connection.execute(events).fetchall()
            if name == "index":
                found["tags"] = connection.execute(
                    "select l.asset_key, l.partition, t.key, t.value from asset_event_tags t"
                    " join event_logs l on l.id = t.event_id order by 1, 2, 3"
                ).fetchall()
                found["last"] = connection.execute(
                    "select k.asset_key, k.last_run_id = l.run_id, l.partition = json_extract(k.last_materialization,"
                    " '$.event_log_entry.dagster_event.event_specific_data.materialization.partition')"
                    " from asset_keys k join event_logs l on l.id = (select max(id) from event_logs where"
                    " asset_key = k.asset_key and dagster_event_type = 'ASSET_MATERIALIZATION')"
                    " and l.id = json_extract(k.last_materialization, '$.storage_id') order by 1"
                ).fetchall()
                found["checks"] = connection.execute(
                    "select asset_key, check_name, execution_status from asset_check_executions order by 1, 2"
                ).fetchall()
    return found


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that are written."""
    sizes: list[int] = []
    write = BatchedSqliteEventLogStorage._store_asset_events

    def counting(self: BatchedSqliteEventLogStorage, run_id: str, events: Sequence[EventLogEntry]) -> None:
        sizes.append(len(events))
        write(self, run_id, events)

    monkeypatch.setattr(BatchedSqliteEventLogStorage, "_store_asset_events", counting)
    return sizes


def test_batches_hold_what_single_events_hold(
    tmp_path: Path, size: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with instance_in(tmp_path / "single", "telemetry:\n  enabled: false\n", monkeypatch) as instance:
        assert type(instance.event_log_storage) is SqliteEventLogStorage
        expected = stored(tmp_path / "single", run(instance))
    assert not batches

    with instance_in(tmp_path / "batched", OWN_STORAGE, monkeypatch) as instance:
        found = stored(tmp_path / "batched", run(instance))
        assert instance.get_materialized_partitions(FIRST.key) == set(KEYS)
        rows = {
            event.asset_materialization.partition: event.asset_materialization.metadata["rows"].value
            for event in (record.event_log_entry for record in instance.fetch_materializations(SECOND.key, 100).records)
            if event.asset_materialization is not None
        }
        assert rows == {key: number for number, key in enumerate(KEYS)}

    assert max(batches) == size
    assert found == expected
    assert [row[1:] for row in found["last"]] == [(1, 1)] * 2  # the row of each asset tells of its last event
    assert len(found["tags"]) >= 2 * len(KEYS)


def test_runs_in_one_batch_go_to_their_own_files(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with instance_in(tmp_path / "home", OWN_STORAGE, monkeypatch) as instance:
        runs = [run(instance) for _ in range(2)]
        events = [next(iter(instance.all_logs(one, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION))) for one in runs]
        before = [len(instance.all_logs(one)) for one in runs]
        instance.event_log_storage.store_event_batch([*events, events[0]])
        assert [len(instance.all_logs(one)) for one in runs] == [before[0] + 2, before[1] + 1]


def form_of(file: Path) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]], object]:
    """Tables and indexes of a run's file, the migrations that it has, and how it writes."""
    with sqlite3.connect(file) as connection:
        return (
            connection.execute("select name, sql from sqlite_master order by 1").fetchall(),
            connection.execute("select version_num from alembic_version").fetchall(),
            connection.execute("pragma journal_mode").fetchone()[0],
        )


def test_the_file_of_a_run_has_the_form_of_dagsters_own(tmp_path: Path) -> None:
    forms = []
    for storage in (SqliteEventLogStorage, BatchedSqliteEventLogStorage):
        folder = tmp_path / storage.__name__
        with storage(str(folder)).run_connection("one"):
            pass
        forms.append(form_of(folder / "one.db"))
    assert forms[0] == forms[1]
    assert len(forms[0][1]) == 1
    assert forms[0][2] == "wal"


@pytest.mark.slow
def test_processes_that_make_the_file_of_a_run_at_once_both_write_to_it(tmp_path: Path) -> None:
    script = (
        "import sys; from curation_assets.foreign.dagster_event_log import BatchedSqliteEventLogStorage as Storage\n"
        "storage = Storage(sys.argv[1]); print(flush=True); sys.stdin.readline()\n"
        "for number in range(20):\n    with storage.run_connection(str(number)): pass\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert [process.wait() for process in started] == [0, 0]
    assert {form_of(tmp_path / f"{number}.db")[1][0] for number in range(20)} == {form_of(tmp_path / "0.db")[1][0]}


def test_an_older_home_keeps_its_history(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    with instance_in(home, "telemetry:\n  enabled: false\n", monkeypatch) as instance:
        before = run(instance)
    (home / "dagster.yaml").write_text(OWN_STORAGE)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert type(instance.event_log_storage) is BatchedSqliteEventLogStorage
        assert instance.get_materialized_partitions(FIRST.key) == set(KEYS)
        assert [one.run_id for one in instance.get_runs()] == [before]
        run(instance)
        assert len(instance.fetch_materializations(FIRST.key, limit=100).records) == 2 * len(KEYS)


def open_files(folder: Path) -> set[str]:
    """Names of the databases below `folder` that this process has open."""
    links = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return {Path(link).name for link in links if link.startswith(str(folder)) and link.endswith(".db")}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files on this system")
def test_the_files_used_last_stay_open_and_no_others(tmp_path: Path) -> None:
    storage = BatchedSqliteEventLogStorage(str(tmp_path))
    for name in ("one", "two", "one", "three", "one", "four"):
        with storage.run_connection(name):
            pass
        with storage.index_connection():
            pass
    assert len(open_files(tmp_path)) == OPEN_FILES
    assert {"index.db", "one.db", "four.db"} < open_files(tmp_path)
    storage.dispose()
    assert open_files(tmp_path) == set()
    with storage.run_connection("two") as connection:  # a storage that was closed opens its files again
        assert connection.execute(text("select count(*) from event_logs")).scalar() == 0
    storage.wipe()
    assert {path.name for path in tmp_path.glob("*.db")} == {"index.db"}
    del storage
    gc.collect()
    assert open_files(tmp_path) == set()


def test_looking_for_a_table_opens_no_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = BatchedSqliteEventLogStorage(str(tmp_path))
    assert not storage.has_table("absent")
    assert storage.has_table("dynamic_partitions")
    monkeypatch.setattr(SqliteEventLogStorage, "has_table", lambda *_: pytest.fail("looked again"))
    assert storage.has_table("dynamic_partitions")
    storage.dispose()


def test_what_another_process_writes_is_read_and_a_file_that_it_removes_is_made_anew(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    with instance_in(home, OWN_STORAGE, monkeypatch) as instance:
        first = run(instance)
        runs = home / "history" / "runs"
        with closing(sqlite3.connect(runs / f"{first}.db", timeout=60)) as other:
            other.execute("delete from event_logs")
            other.commit()
            other.execute("vacuum")  # needs the file for itself: an open connection without a transaction is no reader
            assert other.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0
        assert instance.all_logs(first) == []
        for path in runs.glob(f"{first}.db*"):
            path.unlink()
        event = next(iter(instance.all_logs(run(instance), of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)))
        instance.event_log_storage.store_event(event._replace(run_id=first))
        assert len(instance.all_logs(first)) == 1
        assert form_of(runs / f"{first}.db")[2] == "wal"
