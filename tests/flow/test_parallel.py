"""Worker processes end with the process that they work for, however it ends."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

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
