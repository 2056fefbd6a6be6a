"""`curate ui`, and Dagster's daemon, as processes of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue

import yaml

from curation_assets.core.settings import Settings
from tests.support.paths import REPOSITORY

START_SECONDS = 240  # Dagster is imported by four processes


@contextlib.contextmanager
def curate_ui(home: Path | str, *options: str) -> Iterator[str]:
    """The URL of a running UI with its daemon; ended by Ctrl+C."""
    curate = [sys.executable, "-c", "from curation_assets.cli import main; main()"]
    command = [*curate, "ui", "--port", "0", "--home", str(home), *options]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True)
    lines: Queue[str] = Queue()
    printed: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            printed.append(line)
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    try:
        url = None
        while url is None:
            try:
                line = lines.get(timeout=START_SECONDS)
            except Empty:
                line = ""
            assert line, f"no address from curate ui (exit status {process.poll()}):\n{''.join(printed[-30:])}"
            match = re.search(r"Dagster UI: (http://\S+)", line)
            url = match[1] if match else None
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


@contextlib.contextmanager
def running_daemon(settings: Settings, *, is_quick: bool = False) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Dagster's daemon beside the code location of a home. Yields a function that waits until something holds.

    `is_quick`: its sensors look every ten seconds (quick_sensors.py).
    """
    workspace = REPOSITORY / "workspace.yaml"
    if is_quick:
        workspace = settings.home / "workspace.yaml"
        located = {"module_name": "tests.support.quick_sensors", "working_directory": str(REPOSITORY)}
        content = {"load_from": [{"python_module": {**located, "location_name": "curation"}}]}
        workspace.write_text(yaml.safe_dump(content))
    environment = {
        **os.environ, "CURATION_HOME": str(settings.home), "CURATION_PROFILE": "embedded",
        "DAGSTER_HOME": str(settings.dagster_home),
    }  # fmt: skip
    command = [Path(sys.executable).parent / "dagster-daemon", "run", "-w", workspace]
    path = settings.home / "daemon.log"
    with path.open("wb") as log, subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, stdout=log, stderr=log
    ) as daemon:  # fmt: skip

        def wait_until(holds: Callable[[], bool]) -> None:
            """As long as the test may take."""
            while not holds():
                assert daemon.poll() is None, path.read_text()[-3000:]
                time.sleep(2)

        try:
            yield wait_until
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)
