"""Shards on the nodes of a Ray cluster: the same tables as on one machine, also when a node dies."""

import socket
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.parallel import stop_workers, workers
from curation_assets.flow.ray_workers import RayUnavailableError, TaskLostError, _pass_on
from tests.conftest import FinishedPool, declare_tiny_pool
from tests.support.paths import REPOSITORY

CURATE = [sys.executable, "-c", "from curation_assets.cli import main; main()"]


@pytest.mark.parametrize("address", ["head", "head:", "http://head:6379", "head:6379/x"])
def test_what_is_no_address_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("CURATION_RAY", address)
    with pytest.raises(ValueError, match="CURATION_RAY must read host:port"):
        load_settings(tmp_path)


def test_a_cluster_that_does_not_answer_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("CURATION_RAY", f"127.0.0.1:{port}")
    settings = load_settings(tmp_path)
    assert settings.has_workers
    began = time.monotonic()
    try:
        with pytest.raises(RayUnavailableError, match=f"no Ray cluster answers at CURATION_RAY=127.0.0.1:{port}"):
            workers(settings)
    finally:
        stop_workers()
    assert time.monotonic() - began < 60, "Ray alone tries for minutes"


def test_a_task_that_is_lost_with_every_node_says_so() -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    answered: Future[object] = Future()
    answered.set_exception(exceptions.WorkerCrashedError())
    done: Future[object] = Future()
    _pass_on(answered, done)
    with pytest.raises(TaskLostError, match=r"lost 4 times .* run the same command again"):
        done.result()


def hashes_of(settings: Settings, pool: str) -> dict[tuple[str, str | None], str]:
    """(table, shard) → sha256 of its rows or files."""
    ctx = PoolContext.open(settings, pool)
    found = {}
    for table in tables_of(ctx).values():
        for part in table.partitions(ctx.shards()):
            manifest = ctx.store.manifest(table.name, part)
            if manifest is not None and table.name != "downstream/report":  # it names run and time
                found[table.name, part] = manifest.content_sha256
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_node_that_dies_takes_nothing_with_it(finished_pool: FinishedPool, tmp_path: Path) -> None:
    """Two real nodes on 127.0.0.1; the second is killed while it computes. The rest goes on, with the same tables."""
    pytest.importorskip("ray")
    from tests.support.ray_cluster import ray_cluster

    settings = declare_tiny_pool(tmp_path / "home")
    with ray_cluster() as cluster, (tmp_path / "run.log").open("w+") as log:
        command = [*CURATE, "run", "tiny", "--home", str(settings.home)]
        run = subprocess.Popen(command, cwd=REPOSITORY, env=cluster.environment, stdout=log, stderr=log)
        try:
            while run.poll() is None and not cluster.tasks_of_second():
                time.sleep(0.2)
            assert run.poll() is None, (tmp_path / "run.log").read_text()[-3000:]
            cluster.kill_second()
            assert run.wait(timeout=1000) == 0, (tmp_path / "run.log").read_text()[-3000:]
        finally:
            run.kill()
    expected = hashes_of(finished_pool.settings, "tiny")
    assert len(expected) > 50
    assert hashes_of(settings, "tiny") == expected
    subset = "work/tiny/filtered/subsets"
    files = sorted(path for path in (finished_pool.settings.home / subset).rglob("*.npy"))
    assert files
    for path in files:
        assert (settings.home / path.relative_to(finished_pool.settings.home)).read_bytes() == path.read_bytes()
