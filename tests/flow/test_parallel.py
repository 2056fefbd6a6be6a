"""Worker processes own a device each, are replaced when they are killed, and end with the process they work for."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import psutil
import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.parallel import (
    WorkerEndedError,
    Workers,
    beside,
    call_in_parts,
    progress_of_call,
    stop_workers,
    workers,
)
from tests.support.paths import REPOSITORY

#: Prints the pid of a worker that is then busy for as long as nobody ends it.
BUSY = """
import os, sys, time
from curation_assets.core.settings import load_settings
from curation_assets.flow.parallel import workers
executor = workers(load_settings(sys.argv[1], "embedded"))
print(executor.submit(os.getpid).result(), flush=True)
executor.submit(time.sleep, 600)
time.sleep(600)
"""
SECONDS = 120.0


@pytest.mark.slow
def test_a_worker_does_not_outlive_a_killed_run(tmp_path: Path) -> None:
    """It would go on with its shard, and then hold its models in memory for good."""
    command = [sys.executable, "-c", BUSY, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        worker = psutil.Process(int(run.stdout.readline()))
        time.sleep(1.0)  # busy by now
        run.kill()
    try:
        worker.wait(SECONDS)
    except psutil.TimeoutExpired:
        worker.kill()
        raise


def _use_a_worker(home: str) -> None:
    from curation_assets.core.settings import load_settings
    from curation_assets.flow.parallel import workers

    workers(load_settings(home, "embedded")).submit(os.getpid).result()


def test_a_run_that_is_a_child_process_ends_with_its_work(tmp_path: Path) -> None:
    """Dagster starts runs of the UI so: they stayed for good, with their workers and models, once they had ended."""
    run = multiprocessing.get_context("spawn").Process(target=_use_a_worker, args=(str(tmp_path),))
    run.start()
    run.join(SECONDS)
    is_waiting = run.is_alive()
    if is_waiting:
        for process in psutil.Process(run.pid).children(recursive=True):
            process.kill()
        run.kill()
    assert not is_waiting
    assert run.exitcode == 0


def _device_and_pid() -> tuple[str | None, int]:
    time.sleep(0.5)  # so that both workers take a call
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()


@pytest.mark.slow
def test_each_worker_owns_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_DEVICES", "0,1")
    monkeypatch.delenv("CURATION_WORKERS", raising=False)
    settings = load_settings(tmp_path, "embedded")
    assert settings.workers == 2
    jobs = [workers(settings).submit(_device_and_pid) for _ in range(6)]
    seen = {job.result() for job in jobs}
    stop_workers()
    assert {device for device, _ in seen} == {"0", "1"}
    assert len({pid for _, pid in seen}) == 2, "and keeps it"


def _torch_threads() -> tuple[bool, int]:
    is_loaded = "torch" in sys.modules
    import torch

    return is_loaded, torch.get_num_threads()


#: Prints whether a worker that was started for some roles has torch, and how many threads torch takes there.
LIBRARIES_OF_A_WORKER = """
import sys
from dataclasses import replace
from curation_assets.core.settings import load_settings
from curation_assets.flow.parallel import stop_workers, workers
from tests.flow.test_parallel import _torch_threads
settings = replace(load_settings(sys.argv[1], "embedded"), workers=2, threads=2)
print(*workers(settings, sys.argv[2:]).submit(_torch_threads).result())
stop_workers()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("roles", "expected"), [([], "False 1"), (["image_text_encoder"], "True 1")])
def test_workers_load_torch_only_for_models(tmp_path: Path, roles: list[str], expected: str) -> None:
    """In a process of its own: a fork server that runs has loaded what it was started for."""
    command = [sys.executable, "-c", LIBRARIES_OF_A_WORKER, str(tmp_path), *roles]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert done.stdout.strip() == expected


@pytest.mark.slow
def test_workers_have_the_environment_of_whoever_starts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their fork server keeps that of the first pool: a second one, in a bucket, was written to the disk alone."""
    monkeypatch.setenv("CURATION_WORKERS", "2")
    try:
        for value in ("one", "two", None):
            if value is None:
                monkeypatch.delenv("CURATION_HOMES")
            else:
                monkeypatch.setenv("CURATION_HOMES", value)
            executor = workers(load_settings(tmp_path, "embedded"))
            assert executor.submit(os.getenv, "CURATION_HOMES").result() == value
    finally:
        stop_workers()


def _die_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_work_done_again(tmp_path: Path) -> None:
    pool = Workers(replace(load_settings(tmp_path, "embedded"), workers=2))
    try:
        slow = pool.submit(_device_and_pid)
        assert pool.submit(_die_once, str(tmp_path / "died")).result() == "done"
        dead = pool.submit(_die)
        assert slow.result()[1] > 0, "the other worker is not touched"
        with pytest.raises(WorkerEndedError, match="killed twice"):
            dead.result()
        assert pool.submit(os.getpid).result() > 0, "its place is filled"
    finally:
        pool.shutdown()


def numbered(settings: Settings, pool_name: str, rows: pl.DataFrame, suffix: str) -> pl.DataFrame:
    """Each row with the size of its part and the process that had it."""
    return rows.with_columns(
        pl.lit(rows.height).alias("part"),
        pl.lit(f"{pool_name}{suffix}").alias("name"),
        pl.lit(os.getpid()).alias("pid"),
    )


@pytest.mark.parametrize(("workers_count", "parts"), [(1, [5]), (2, [3, 2])])
def test_rows_go_to_workers_in_consecutive_parts(tmp_path: Path, workers_count: int, parts: list[int]) -> None:
    settings = replace(load_settings(tmp_path), workers=workers_count, threads=2)
    try:
        found = list(call_in_parts(settings, numbered, "pool", pl.DataFrame({"row": range(5)}), "!"))
        none = list(call_in_parts(settings, numbered, "pool", pl.DataFrame({"row": []}), "!"))
    finally:
        stop_workers()
    assert [part.height for part in found] == parts
    assert pl.concat(found)["row"].to_list() == list(range(5))
    assert {name for part in found for name in part["name"]} == {"pool!"}
    assert all((os.getpid() in part["pid"]) == (workers_count == 1) for part in found)
    assert [part.columns for part in none] == [["row", "part", "name", "pid"]]  # the columns are there without rows


def write_pid(path: str, fails: bool = False) -> None:
    """The process that this is called in, into a file."""
    time.sleep(0.2)
    Path(path).write_text(str(os.getpid()))
    if fails:
        raise ValueError("the page cannot be written")


@pytest.mark.parametrize("has_worker", [False, True])
def test_a_call_beside_a_block_is_over_when_the_block_is(tmp_path: Path, has_worker: bool) -> None:
    """By a worker that is there already: none is started for it."""
    settings = replace(load_settings(tmp_path, "embedded"), workers=2, threads=2)
    try:
        stop_workers()
        others = {workers(settings, []).submit(os.getpid).result()} if has_worker else set()
        with beside(settings, write_pid, str(tmp_path / "pid")):
            assert not (tmp_path / "pid").exists()
        assert (int((tmp_path / "pid").read_text()) != os.getpid()) is bool(others)
        with (
            pytest.raises(ValueError, match="cannot be written"),
            beside(settings, write_pid, str(tmp_path / "x"), True),
        ):
            pass
        (tmp_path / "pid").unlink()
        with pytest.raises(KeyError, match="own"), beside(settings, write_pid, str(tmp_path / "pid"), True):
            raise KeyError("own")
        assert (tmp_path / "pid").exists(), "the block ended before the call"
    finally:
        stop_workers()


def kind_of_bar_lock() -> str:
    """What guards progress bars of tqdm in this process."""
    from tqdm.auto import tqdm

    with tqdm(total=1, disable=True):
        return type(tqdm.get_lock()).__module__


def test_progress_bars_of_workers_take_no_semaphore_of_the_system(tmp_path: Path) -> None:
    """A worker that is killed would leave it behind, and Python prints a warning about it after Ctrl+C."""
    settings = replace(load_settings(tmp_path, "embedded"), workers=2, threads=2)
    try:
        assert workers(settings, []).submit(kind_of_bar_lock).result() == "_thread"
    finally:
        stop_workers()


def _half_then_wait(settings: Settings, pool_name: str, rows: pl.DataFrame, marker: str) -> pl.DataFrame:
    """Reports half of its work, and ends only when somebody has seen it."""
    with progress_of_call().task("rows", 2 * rows.height) as advance:
        advance(rows.height)
        end = time.monotonic() + SECONDS
        while not Path(marker).exists():
            assert time.monotonic() < end, "nobody saw that half is done"
            time.sleep(0.05)
        advance(rows.height)
    return rows


def test_what_workers_have_in_hand_counts_before_they_have_finished(tmp_path: Path) -> None:
    """A training takes minutes: its bar stood at 0 of 80."""
    settings = replace(load_settings(tmp_path, "embedded"), workers=2, threads=2)
    marker, seen = tmp_path / "seen", list[float]()

    def advance(rows: float) -> None:
        seen.append(rows)
        if sum(seen) >= 3:  # half of either part of six rows
            marker.touch()

    try:
        call = call_in_parts(
            settings, _half_then_wait, "pool", pl.DataFrame({"row": range(6)}), str(marker), advance=advance
        )
        assert pl.concat(call)["row"].to_list() == list(range(6))
        assert sum(seen) == pytest.approx(6)
        assert min(seen) >= 0
        executor = workers(settings)
        assert isinstance(executor, Workers)
        assert list(executor.in_hand) == [0, 0]
    finally:
        stop_workers()
