"""Shards on the nodes of a Ray cluster: the same tables as on one machine, also when a node dies."""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from typer.testing import CliRunner

from curation_assets.cli import app
from curation_assets.core.settings import PROFILES_ROOT, load_settings
from curation_assets.defs.launch import run_pool
from curation_assets.flow.parallel import stop_workers
from curation_assets.flow.ray_workers import RayUnavailableError, TaskLostError, _pass_on
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.content_hash import frame_sha256
from tests.defs.test_ranges import contents
from tests.support.lineage_pools import OPTIONS, bring_up_to_date, finished_photos, webdataset_pool
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


#: A pool of some rows is one that fits into no memory, and each of its shards a group.
OF_LITTLE_MEMORY = """
from curation_assets.selection import part_by_part, ranges
ranges.ROWS_IN_MEMORY, ranges.GROUP_ROWS, ranges.PART_ROWS, part_by_part.PART_ROWS = 3, 1, 7, 7
from curation_assets.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_cuts_and_ledgers_of_a_pool_larger_than_memory_outlive_a_node(tmp_path: Path) -> None:
    """Only what looks at the whole pool is to be made, so that all tasks are its own."""
    pytest.importorskip("ray")
    webdataset_pool(tmp_path / "local", shards=5, per_shard=4)
    run_pool(load_settings(tmp_path / "local", "embedded"), "photos")
    spread = tmp_path / "spread"
    shutil.copytree(tmp_path / "local", spread, symlinks=True)
    shutil.rmtree(spread / "work" / "photos" / "filtered")
    command = [sys.executable, "-c", OF_LITTLE_MEMORY, "run", "photos", "--home", str(spread), "--profile", "embedded"]
    run_while_a_node_dies(command)
    assert not list((spread / "work" / "photos").glob("*sorted_rows*"))
    assert contents(spread) == contents(tmp_path / "local")
    ledgers = sorted((tmp_path / "local" / "work" / "photos" / "filtered" / "ledger").glob("*.parquet"))
    assert ledgers
    for ledger in ledgers:
        assert (spread / ledger.relative_to(tmp_path / "local")).read_bytes() == ledger.read_bytes()


#: In a process of its own: groups of a pool that fits into no memory are read by whoever does; whether on the node of
#: the run, and what, is noted. The other node has another folder of working copies.
NOTING = """
import os, sys, time
from pathlib import Path
from curation_assets.selection import ranges
from tests.support.little_memory import little_memory
notes, homes, read, is_lost = Path(sys.argv.pop(1)), os.environ["CURATION_HOMES"], ranges.spill, {is_lost}
def spill(root, shards, place, wanted):
    read(root, shards, place, wanted)
    is_own = os.environ["CURATION_HOMES"] == homes
    with notes.open("a") as file:
        file.write(f"{{is_own}} {{place.name}} {{wanted[0]}}\\n")
    while is_lost and not is_own:  # until the node is killed
        time.sleep(1)
ranges.spill = spill
"""
CUTS_AND_LEDGERS = """
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from tests.support.lineage_pools import summarise
with little_memory(7):
    summarise(PoolContext.open(load_settings(sys.argv[1], "embedded"), "photos", run_id="run-7"))
"""
COMMAND = """
from curation_assets.cli import main
with little_memory(7):
    main()
"""


@pytest.mark.slow
@pytest.mark.infra
@pytest.mark.timeout(1500)
def test_groups_in_a_bucket_outlive_the_node_that_put_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node dies with a group's objects put and its call not ended: the other one reads the group again."""
    pytest.importorskip("ray")
    from tests.support.bucket import BUCKET, running_bucket

    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "homes"))
    webdataset_pool(tmp_path, shards=4, per_shard=6)
    with running_bucket(monkeypatch) as bucket:
        settings = load_settings(f"s3://{BUCKET}/pools", "embedded")
        add_pool(settings, "photos", tmp_path / "tars", options=OPTIONS)
        store = bring_up_to_date(settings).store
        filtered = "pools/work/photos/filtered/"

        def made() -> dict[str, bytes | str]:
            """Bytes of subsets and ledgers, whatever version they are of; of tables, whose footers name times, rows."""
            found: dict[str, bytes | str] = {}
            for key in bucket.keys(filtered):
                if key.endswith("/data.parquet"):
                    found[key] = frame_sha256(pl.read_parquet(bucket.read(key)))
                elif key.endswith((".parquet", ".npy")):
                    found[re.sub(r"\.version-[0-9a-f]+", "", key)] = bucket.read(key)
            return found

        expected = made()
        for kind in ("_cut/data.parquet", ".npy", ".parquet"):
            assert len([key for key in expected if key.endswith(kind)]) > 2
        remove_path(store.root / "filtered")
        assert not bucket.keys(filtered)
        notes = tmp_path / "notes"
        script = NOTING.format(is_lost=True) + CUTS_AND_LEDGERS
        command = [sys.executable, "-c", script, str(notes), f"s3://{BUCKET}/pools"]
        run_while_a_node_dies(command, lambda _: notes.is_file() and "False" in notes.read_text())
        assert made() == expected
        calls = [line.split(maxsplit=1) for line in notes.read_text().splitlines()]
        (lost,) = [what for is_own, what in calls if is_own == "False"]
        assert ["True", lost] in calls, "the group was read again"
        assert not [key for key in bucket.keys("pools/work/") if "sorted_rows" in key]


@pytest.mark.slow
@pytest.mark.infra
@pytest.mark.timeout(1500)
def test_a_what_if_of_a_pool_larger_than_memory_is_read_by_both_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from tests.support.ray_cluster import ray_cluster

    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "homes"))
    monkeypatch.setenv("CURATION_PROFILE", "embedded")
    finished_photos(tmp_path)
    command = ["diff", "icc", "--at", "0.5", "--json", "--pool", "photos", "--home", str(tmp_path)]
    here = CliRunner().invoke(app, command)
    assert here.exit_code == 0, here.output
    notes, script = tmp_path / "notes", NOTING.format(is_lost=False) + COMMAND
    on_gpus = tmp_path / "embedded.yaml"  # a profile that may use a GPU, which only one of the nodes has
    on_gpus.write_text((PROFILES_ROOT / "embedded.yaml").read_text().replace("device: cpu", "device: auto"))
    with ray_cluster(gpus_of_first=1) as cluster:
        environment = {**cluster.environment, "CURATION_PROFILE": str(on_gpus)}
        spread = subprocess.run(
            [sys.executable, "-c", script, str(notes), *command],
            cwd=REPOSITORY, env=environment, capture_output=True, text=True,
        )  # fmt: skip
    assert spread.returncode == 0, spread.stderr[-3000:]
    assert json.loads(spread.stdout) == json.loads(here.stdout)
    assert {line.split()[0] for line in notes.read_text().splitlines()} == {"True", "False"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nodes_with_caches_of_their_own_share_a_home_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the nodes read of a pool that fits into no memory reaches the run through the bucket, and leaves it."""
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
        running_bucket(monkeypatch) as bucket,
        ray_cluster() as cluster,
    ):  # its nodes know the bucket from the environment
        home = f"s3://{BUCKET}/pools"
        add_pool(load_settings(home, "embedded"), "photos", tars, options=OPTIONS)
        command = [sys.executable, "-c", OF_LITTLE_MEMORY, "run", "photos", "--home", home, "--profile", "embedded"]
        run = subprocess.Popen(command, cwd=REPOSITORY, env=cluster.environment, stderr=subprocess.PIPE, text=True)
        was_used = False
        while run.poll() is None:
            was_used = was_used or bool(cluster.tasks_of_second())
            time.sleep(0.1)
        assert run.stderr is not None
        assert run.returncode == 0, run.stderr.read()[-3000:]
        assert was_used, "the second node computed something"
        assert contents(Path(home)) == contents(tmp_path / "local")
        puts = [one.key for one in bucket.requests if one.method == "PUT" and "/sorted_rows/" in one.key]
        assert {key.split("/")[-3] for key in puts} == {"group0", "group1"}
        assert not [key for key in bucket.keys("pools/work/") if "sorted_rows" in key]
