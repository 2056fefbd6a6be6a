"""What runs of a command print: on its own terminal, at once, and nothing else at Ctrl+C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.sources.declaration import add_world_pool
from curation_assets.sources.download.download import DownloadSettings
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY

SECONDS = 120.0


def test_output_of_a_run_is_not_sent_through_files(tmp_path: Path) -> None:
    """Dagster keeps a copy of it for the UI, and shows it by `tail` processes: late, or not at all at the end."""
    settings = webdataset_pool(tmp_path, shards=1, per_shard=4)

    def files() -> list[tuple[int, int]]:
        return [(file.st_dev, file.st_ino) for file in (os.fstat(s.fileno()) for s in (sys.stdout, sys.stderr))]

    seen: list[list[tuple[int, int]]] = []
    run_pool(settings, "photos", tables=["raw/registered_shards"], on_table=lambda report: seen.append(files()))
    assert seen == [files()]
    with prepare_instance(settings) as instance:
        (run,) = instance.get_runs()
        (event,) = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED)
        assert event.dagster_event is not None
        key = instance.compute_log_manager.build_log_key_for_run(
            run.run_id, event.dagster_event.logs_captured_data.file_key
        )
        kept = instance.compute_log_manager.get_log_data(key)
        assert kept.stdout is not None
        assert b"where it was started" in kept.stdout
        assert instance.compute_log_manager.is_capture_complete(key), "the page of the run would wait for more"


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_run_is_one_sentence(tmp_path: Path) -> None:
    """The terminal sends it to every process of the command: none of them prints a traceback."""
    settings = load_settings(tmp_path, "embedded")
    add_world_pool(
        settings, "scenes", size=250, seed=1, shard_size=250, download=DownloadSettings(timeout_seconds=SECONDS)
    )
    command = [sys.executable, "-c", "from curation_assets.cli import main; main()", "run", "scenes"]
    command += ["--home", str(tmp_path), "--table", "raw/registered_shards", "--table", "raw/downloads"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        shown = [run.stdout.readline() for _ in range(2)]
        assert "raw/registered_shards" in shown[1]  # a download of this world waits for a server that is slow
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 130
    expected = ("the same command goes on from here", "shards: ")  # beside lines of progress
    assert [line for line in errors.splitlines() if not any(words in line for words in expected)] == []
