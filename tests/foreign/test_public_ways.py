"""Each guard forced off: the public way gives the same, or a sentence states what is not possible."""

import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy.dialects.sqlite.base import SQLiteDialect

from curation_assets.core.settings import environment_read, foreign_parts_off
from curation_assets.core.table_names import SUBSETS
from curation_assets.flow.context import PoolContext
from curation_assets.foreign.dagster_runs import add_metadata, set_dagster_home
from curation_assets.foreign.dagster_storage import own_sqlite_storage, records_of
from curation_assets.foreign.open_clip_training import read_tars_with
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.content_hash import frame_sha256
from tests.conftest import declare_tiny_pool
from tests.support.paths import REPOSITORY

KEYS = ["a", "b", "c"]
HOLDS_TIMES = re.compile(r"_runs$|seconds|^raw/(downloads|provenance)$")


@pytest.fixture(params=["", "all"], ids=["as tried", "forced off"])
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CURATION_FOREIGN_OFF", request.param)
    return str(request.param)


def test_metadata_of_shards_is_the_same(off: str, tmp_path: Path) -> None:
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(KEYS), backfill_policy=dg.BackfillPolicy.single_run())
    def table(context: dg.AssetExecutionContext) -> None:
        for key in context.partition_keys:
            add_metadata(context, {"rows": KEYS.index(key)}, key)

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "c"}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = dg.Definitions([table], jobs=[dg.define_asset_job("all", "table")]).resolve_job_def("all")
        job.execute_in_process(instance=instance, tags=tags)
        records = instance.fetch_materializations(table.key, limit=9).records
    rows = {record.partition_key: record.asset_materialization.metadata["rows"].value for record in records}
    assert rows == {"a": 0, "b": 1, "c": 2}


def test_a_home_whose_path_is_a_pattern_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster looks for dagster.yaml by pattern."""
    monkeypatch.setenv("CURATION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DAGSTER_HOME", "")
    for name in ("exp [a]", "st*r", "plain"):
        home = tmp_path / name
        home.mkdir()
        (home / "dagster.yaml").write_text(
            "run_launcher: {module: tests.foreign.own_launcher, class: OwnLauncher}\ntelemetry: {enabled: false}\n"
        )
        for _ in range(2):
            path = set_dagster_home(home)
            assert (path == home, path.resolve()) == (name == "plain", home.resolve())
            assert os.environ["DAGSTER_HOME"] == str(path)
        with dg.DagsterInstance.get() as instance:
            assert type(instance.run_launcher).__name__ == "OwnLauncher"


@pytest.mark.slow
def test_the_storage_that_homes_name_is_dagsters_own_where_batches_are_off(off: str, tmp_path: Path) -> None:
    """The configuration of a home stays; both write the same files."""
    script = (
        "import dagster as dg\n"
        "with dg.DagsterInstance.get() as instance:\n"
        "    print(type(instance.event_log_storage).__module__, instance.event_log_storage.alembic_version())\n"
    )
    (tmp_path / "dagster.yaml").write_text((REPOSITORY / "infra" / "dagster.yaml").read_text())
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DAGSTER_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("dagster." if off else "curation_assets.foreign.dagster_event_log"), done.stderr
    assert {path.name for path in tmp_path.rglob("*.db")} == {"runs.db", "index.db", "schedules.db"}
    assert own_sqlite_storage().__name__ == "DagsterSqliteStorage"


def test_records_on_a_server_are_left_to_their_owner(off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        local = records_of(instance)
        assert not local.servers
        assert not local.unknown
        assert tmp_path / "schedules" in local.folders
        assert any(folder.name == "storage" for folder in local.folders), "of what steps print"
        monkeypatch.setattr(SQLiteDialect, "name", "other")  # a real server's: tests/infra/test_takedown_storages.py
        elsewhere = records_of(instance)
    assert len(elsewhere.servers) == (0 if off else 3)
    assert len(elsewhere.unknown) == (3 if off else 0)


def test_open_clips_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_FOREIGN_OFF", "webdataset_shuffle")
    with pytest.raises(ValueError, match=r"install webdataset>=0.2.111,<0.3"):
        read_tars_with(iter, bool)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_demo_has_the_same_tables_with_every_guard_off(tmp_path: Path) -> None:
    """The pool of `curate demo`, smaller: drawn, scored, distilled, judged, trained on, reported."""
    found: list[dict[str, bytes | str]] = []
    for off in ("", "all"):
        home = tmp_path / f"off-{off}"
        settings = declare_tiny_pool(home)
        command = [sys.executable, "-c", "from curation_assets.cli import main; main()", "run", "tiny", "--home", home]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CURATION_FOREIGN_OFF": off}
        done = subprocess.run([*command, "--profile", "embedded"], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        store = PoolContext.open(settings, "tiny").store
        tables = [name for name in stored_tables(store) if not HOLDS_TIMES.search(name)]
        manifests = [store.manifest(name, key) for name in tables for key in store.partitions(name) or [None]]
        made = {f"{one.asset} {one.partition}": one.content_sha256 for one in manifests if one is not None}
        assert len(made) > 60
        for name in ("raw/downloads", "raw/provenance"):
            made[name] = frame_sha256(store.scan(name).drop("fetched_at", "rights_signals").collect())
        found.append(made | {path.name: path.read_bytes() for path in store.folder_path(SUBSETS).glob("*.npy")})
    assert found[0] == found[1]


def test_settings_read_what_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that turns guards off is passed on to workers as every setting is."""
    monkeypatch.setenv("CURATION_FOREIGN_OFF", " own_output,event_batches ,")
    assert foreign_parts_off() == {"own_output", "event_batches"}
    assert environment_read()["CURATION_FOREIGN_OFF"]
