"""`curate ui` as a process of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

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
