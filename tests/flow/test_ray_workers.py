"""Shards on the nodes of a Ray cluster: the same tables as on one machine, also when a node dies."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import run_pool
from curation_assets.flow.parallel import stop_workers
from curation_assets.flow.ray_workers import RayUnavailableError, TaskLostError, _pass_on
from curation_assets.sources.declaration import add_pool
from tests.defs.test_ranges import contents
from tests.support.lineage_pools import OPTIONS, webdataset_pool
from tests.support.paths import REPOSITORY

if TYPE_CHECKING:
    from tests.support.ray_cluster import RayCluster

CURATE = [sys.executable, "-c", "from curation_assets.cli import main; main()"]


@pytest.mark.parametrize("address", ["head", "head:", "http://head:6379", "head:6379/x"])
def test_what_is_no_address_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("CURATION_RAY", address)
    with pytest.raises(ValueError, match="CURATION_RAY must read host:port"):
        load_settings(tmp_path)


def test_a_cluster_that_does_not_answer_is_named_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("CURATION_RAY", f"127.0.0.1:{port}")
    settings = webdataset_pool(tmp_path, shards=1, per_shard=3)
    assert settings.has_workers
    try:
        with pytest.raises(RayUnavailableError, match=f"no Ray cluster answers at CURATION_RAY=127.0.0.1:{port}"):
            run_pool(settings, "photos")
    finally:
        stop_workers()


def test_a_task_that_is_lost_with_every_node_says_so() -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    answered: Future[object] = Future()
    answered.set_exception(exceptions.WorkerCrashedError())
    done: Future[object] = Future()
    _pass_on(answered, done)
    with pytest.raises(TaskLostError, match=r"lost 4 times .* run the same command again"):
        done.result()


@pytest.mark.slow
def test_tasks_that_fit_on_no_node_are_refused(tmp_path: Path) -> None:
    """Two nodes with one CPU each have two together, and a task of two would wait for ever."""
    pytest.importorskip("ray")
    from tests.support.ray_cluster import ray_cluster

    with ray_cluster() as cluster:
        environment = {**cluster.environment, "CURATION_THREADS": "2", "CURATION_WORKERS": "1"}
        webdataset_pool(tmp_path, shards=1, per_shard=3)
        command = [*CURATE, "run", "photos", "--home", str(tmp_path), "--profile", "embedded"]
        ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode != 0
    assert "a task needs 2 CPUs of one node" in " ".join((ended.stdout + ended.stderr).split())


def run_while_a_node_dies(
    command: list[str], is_due: "Callable[[RayCluster], object]" = lambda cluster: cluster.tasks_of_second()
) -> None:
    """Run a command on a cluster, and kill the second of its nodes once that has a task, or whatever `is_due` waits
    for; the command ends well."""
    from tests.support.ray_cluster import ray_cluster

    with ray_cluster() as cluster, tempfile.TemporaryFile("w+") as log:
        run = subprocess.Popen(command, cwd=REPOSITORY, env=cluster.environment, stdout=log, stderr=log)
        try:
            while run.poll() is None and not is_due(cluster):
                time.sleep(0.01)
            is_reached = run.poll() is None
            cluster.kill_second()
            status = run.wait(timeout=1200)
        finally:
            run.kill()
        log.seek(0)
        assert is_reached, f"no task came to the second node: {log.read()[-3000:]}"
        assert status == 0, log.read()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_node_that_dies_takes_nothing_with_it(tmp_path: Path) -> None:
    """Two real nodes on 127.0.0.1; the second is killed while it computes. The rest goes on, with the same tables."""
    pytest.importorskip("ray")
    webdataset_pool(tmp_path / "local", shards=5, per_shard=4)
    run_pool(load_settings(tmp_path / "local", "embedded"), "photos")
    webdataset_pool(tmp_path / "spread", shards=5, per_shard=4)
    run_while_a_node_dies([*CURATE, "run", "photos", "--home", str(tmp_path / "spread"), "--profile", "embedded"])
    assert contents(tmp_path / "spread") == contents(tmp_path / "local")
    subsets = "work/photos/filtered/subsets"
    files = sorted((tmp_path / "local" / subsets).rglob("*.npy"))
    assert files
    for file in files:
        assert (tmp_path / "spread" / file.relative_to(tmp_path / "local")).read_bytes() == file.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nodes_with_caches_of_their_own_share_a_home_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What either node makes reaches the other, and the run, through the bucket."""
    pytest.importorskip("ray")
    from tests.support.bucket import BUCKET, running_bucket
    from tests.support.ray_cluster import ray_cluster

    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "homes"))
    webdataset_pool(tmp_path / "source", shards=2, per_shard=4)
    tars = tmp_path / "source" / "tars"  # outside both homes: rows name the same files
    local = load_settings(tmp_path / "local", "embedded")
    add_pool(local, "photos", tars, options=OPTIONS)
    run_pool(local, "photos")
    with (
        running_bucket(monkeypatch),
        ray_cluster() as cluster,
    ):  # its nodes know the bucket from the environment
        home = f"s3://{BUCKET}/pools"
        add_pool(load_settings(home, "embedded"), "photos", tars, options=OPTIONS)
        command = [*CURATE, "run", "photos", "--home", home, "--profile", "embedded"]
        run = subprocess.Popen(command, cwd=REPOSITORY, env=cluster.environment, stderr=subprocess.PIPE, text=True)
        was_used = False
        while run.poll() is None:
            was_used = was_used or bool(cluster.tasks_of_second())
            time.sleep(0.1)
        assert run.stderr is not None
        assert run.returncode == 0, run.stderr.read()[-3000:]
        assert was_used, "the second node computed something"
        assert contents(Path(home)) == contents(tmp_path / "local")
