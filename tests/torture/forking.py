"""Children that can be killed: forked from a process that has imported everything once, each in a session of its own.

A fresh interpreter takes seconds to import Dagster, polars and torch; a fork takes none. The forking process computes
nothing itself, since threads do not survive a fork.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curation_assets.flow.sql import recipes
from tests.support.paths import REPOSITORY

PRELOAD = (
    "curation_assets.cli.run", "curation_assets.cli.takedown", "curation_assets.cli.refit", "tests.torture.canary",
    "curation_assets.cli.export", "curation_assets.cli.release", "curation_assets.cli.retry",
    "curation_assets.cli.verify",
    "curation_assets.defs.publishing", "curation_assets.outputs.report.report", "curation_assets.stages.raw.tables",
    "dagster._core.storage.event_log.sqlite", "dagster._core.storage.runs.sqlite", "sqlalchemy.dialects.sqlite",
    "alembic.command", "pandas", "pyarrow.compute", "scipy.sparse", "matplotlib.backends.backend_agg", "jinja2",
    "upath", "fsspec.core", "structlog", "torch", "timm",
)  # fmt: skip
#: One thread each: the tries are many and small.
ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "CURATION_THREADS", "CURATION_WORKERS"), "1")
POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    status: int  # exit status, or minus the signal
    is_late: bool  # it outlived its time limit, and was killed for that
    seconds: float  # wall time
    result: Any  # what the function returned; None where it did not
    log: str  # its standard output and error

    @property
    def was_killed(self) -> bool:
        """By itself or by `kill_after`."""
        return self.status == -signal.SIGKILL and not self.is_late


def call(
    function: str, arguments: dict[str, Any], folder: Path, *, seconds: float, kill_after: float | None = None
) -> Ended:
    """Call 'module:function' in a child, with arguments and a result that JSON can hold.

    `seconds`: its time limit. `kill_after`: kill its whole process group so many seconds after it began.
    """
    log, result = folder / "log.txt", folder / "result.json"
    result.unlink(missing_ok=True)
    request = {
        "function": function, "arguments": arguments, "log": str(log), "result": str(result), "seconds": seconds,
        "kill_after": kill_after,
    }  # fmt: skip
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(request) + "\n")
    parent.stdin.flush()
    answer = json.loads(parent.stdout.readline())
    given = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None
    return Ended(**answer, result=given, log=log.read_text(encoding="utf-8", errors="replace"))


@functools.cache
def _parent() -> subprocess.Popen[str]:
    """The forking process of this one, started on first use."""
    command = [sys.executable, "-m", "tests.torture.forking"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment
    )
    atexit.register(process.kill)
    return process


def _serve() -> None:
    """Read requests, one per line; answer each when its child has ended."""
    for name in PRELOAD:
        importlib.import_module(name)
    recipes()  # parsing them takes a second
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(request)
        is_late = False
        while True:
            ended, state = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            passed = time.monotonic() - began
            is_late = passed > request["seconds"]
            if is_late or (request["kill_after"] is not None and passed > request["kill_after"]):
                _kill_group(child)
            time.sleep(POLL_SECONDS)
        _kill_group(child)  # what it left behind
        answer = {
            "status": os.waitstatus_to_exitcode(state), "is_late": is_late, "seconds": time.monotonic() - began,
        }  # fmt: skip
        print(json.dumps(answer), flush=True)


def _kill_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # not in its session yet, or ended
        os.killpg(child, signal.SIGKILL)


def _child(request: dict[str, Any]) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        log = os.open(request["log"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        module, _, name = request["function"].partition(":")
        given = getattr(importlib.import_module(module), name)(**request["arguments"])
        Path(request["result"]).write_text(json.dumps(given), encoding="utf-8")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
