"""Dagster's instance on a real Postgres server on 127.0.0.1: `curate run` and `curate ui` with its daemon."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import InstanceError, prepare_instance, run_pool
from curation_assets.defs.lineage import recorded_lineage
from curation_assets.flow.context import PoolContext
from tests.defs.test_partitions import RAW, pool_of
from tests.defs.test_partitions import contents as contents_of
from tests.defs.test_ranges import contents
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY
from tests.support.webserver import curate_ui

pytest.importorskip("dagster_postgres")
psycopg2 = pytest.importorskip("psycopg2")
CURATE = [sys.executable, "-c", "from curation_assets.cli import main; main()"]
PASSWORD = "p@ss/word:1"  # what a URL would have to quote

pytestmark = pytest.mark.infra


def server_program(name: str) -> str:
    """The newest installed one; Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which(name)
    if program is None:
        pytest.skip(f"Postgres' {name} is not installed here (Debian: postgresql)")
    return program


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[dict[str, str]]:
    """An empty server that asks for a password; its environment variables, all but the database's."""
    initdb, pg_ctl = server_program("initdb"), server_program("pg_ctl")
    as_user: list[str] = []
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder = Path(name)
        if os.geteuid() == 0:  # the server refuses to run as root
            if shutil.which("runuser") is None or "postgres" not in {user.pw_name for user in pwd.getpwall()}:
                pytest.skip("Postgres does not run as root, and there is no user postgres or no runuser here")
            as_user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(folder, "postgres")
        (folder / "password").write_text(PASSWORD)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        data, log = folder / "data", folder / "log"
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        made = [initdb, "-D", str(data), "-A", "scram-sha-256", "-U", "curation", f"--pwfile={folder / 'password'}"]
        subprocess.run([*as_user, *made], check=True, capture_output=True, cwd=folder)
        # its output would be a pipe that the server holds open
        start = [pg_ctl, "-D", str(data), "-w", "-o", options, "-l", str(log), "start"]
        subprocess.run([*as_user, *start], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            yield {
                "DAGSTER_PG_HOST": "127.0.0.1",
                "DAGSTER_PG_PORT": str(port),
                "DAGSTER_PG_USER": "curation",
                "DAGSTER_PG_PASSWORD": PASSWORD,
            }
        finally:
            subprocess.run(
                [*as_user, pg_ctl, "-D", str(data), "-m", "immediate", "stop"], capture_output=True, cwd=folder
            )


@pytest.fixture
def postgres(postgres_server: dict[str, str]) -> dict[str, str]:
    """Variables of a database of its own on the server."""
    database = f"test_{uuid.uuid4().hex}"
    connection = psycopg2.connect(
        host=postgres_server["DAGSTER_PG_HOST"],
        port=postgres_server["DAGSTER_PG_PORT"],
        dbname="postgres",
        user=postgres_server["DAGSTER_PG_USER"],
        password=PASSWORD,
    )
    connection.autocommit = True  # a database is not made within a transaction
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
    return {**postgres_server, "DAGSTER_PG_DB": database}


@pytest.fixture
def home(postgres: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose instance is on the server; this process has the variables."""
    for name, value in postgres.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "home"
    (folder / "dagster").mkdir(parents=True)
    shutil.copy(REPOSITORY / "infra/postgres/dagster.yaml", folder / "dagster")
    return folder


def asked(url: str, query: str) -> Any:
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    assert "errors" not in answer, answer
    return answer["data"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_and_ui_with_daemon_work_on_postgres(home: Path, tmp_path: Path) -> None:
    settings = webdataset_pool(home, shards=2, per_shard=3)
    command = [*CURATE, "run", "photos", "--home", str(home), "--profile", "embedded"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for _ in range(2):
        done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "up to date" in done.stdout
    with prepare_instance(settings) as instance:
        assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
        runs = instance.get_runs()
        assert runs
        assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}, "and the second command made none"
        assert instance.get_materialized_partitions(dg.AssetKey(["photos", "raw", "samples"])) == {
            "photos-000000",
            "photos-000001",
        }
    assert not list((home / "dagster").rglob("*.db")), "nothing is in SQLite"
    webdataset_pool(tmp_path / "sqlite", shards=2, per_shard=3)
    on_sqlite = [*CURATE, "run", "photos", "--home", str(tmp_path / "sqlite"), "--profile", "embedded"]
    subprocess.run(on_sqlite, env=environment, cwd=REPOSITORY, check=True, capture_output=True)
    assert contents(home) == contents(tmp_path / "sqlite"), "where records lie changes no table"
    with curate_ui(home) as url:
        listed = asked(url, "{ runsOrError { ... on Runs { results { runId status } } } }")
        assert {run["runId"] for run in listed["runsOrError"]["results"]} >= {run.run_id for run in runs}
        healthy: dict[str, bool] = {}
        for _ in range(60):
            statuses = asked(url, "{ instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } } }")
            daemons = statuses["instance"]["daemonHealth"]["allDaemonStatuses"]
            healthy = {daemon["daemonType"]: daemon["healthy"] for daemon in daemons if daemon["required"]}
            if healthy and all(healthy.values()):
                break
            time.sleep(2)
        assert healthy, "Dagster requires some"
        assert all(healthy.values()), healthy


@pytest.mark.slow
def test_blocks_of_shards_make_the_tables_of_single_shards_on_postgres(home: Path, tmp_path: Path) -> None:
    """Lineage agrees, and the second run has nothing left to do."""
    settings, blocks = pool_of(home, 2, shards=5), {f"photos-00000{n}..00000{n + 1}" for n in (0, 2, 4)}
    assert all(report.computed for report in run_pool(settings, "photos", shards=["1..3"], tables=RAW))
    run_pool(settings, "photos")
    assert not [report.table for report in run_pool(settings, "photos") if report.computed]
    with prepare_instance(settings) as instance:
        assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
        assert set(instance.get_dynamic_partitions("photos")) == blocks
        assert instance.get_materialized_partitions(dg.AssetKey(["photos", "filtered", "icc"])) == blocks
    assert set(recorded_lineage(PoolContext.open(settings, "photos"), "filtered/icc").edges["dagster"]) == {"agrees"}
    single = pool_of(tmp_path / "single", 1, shards=5)
    run_pool(single, "photos")
    assert contents_of(settings) == contents_of(single)


def test_a_wrong_password_an_absent_server_and_an_unset_variable_are_said_in_a_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(home, "embedded")
    with monkeypatch.context() as patch:
        patch.setenv("DAGSTER_PG_PASSWORD", "another")
        with pytest.raises(InstanceError, match=r"dagster\.yaml cannot be opened: .*password authentication failed"):
            prepare_instance(settings)
    with monkeypatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        patch.setenv("DAGSTER_PG_PORT", str(port))
        with pytest.raises(InstanceError, match="Connection refused"):
            prepare_instance(settings)
    monkeypatch.delenv("DAGSTER_PG_USER")
    with pytest.raises(InstanceError, match='environment variable "DAGSTER_PG_USER" which is not set'):
        prepare_instance(settings)


def test_the_instance_may_lie_outside_the_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "instance"
    shutil.copytree(home / "dagster", elsewhere)
    monkeypatch.setenv("CURATION_DAGSTER_HOME", str(elsewhere))
    settings = load_settings(tmp_path / "another", "embedded")
    assert settings.dagster_home == elsewhere
    with prepare_instance(settings) as instance:
        assert type(instance.run_storage).__name__ == "PostgresRunStorage"
    assert not (tmp_path / "another" / "dagster").exists()
