"""Children forked from a process that has imported everything once: a fresh interpreter takes seconds for Dagster,
polars and torch, a fork takes none.

`python -m tests.support.forking WORDS` is what `curate WORDS` does, in a fork of the server that FORK_SERVER names.
"""

import atexit
import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

SOCKET = "FORK_SERVER"  # variable of the environment: where the server listens
FORKING = "tests.support.forking"  # this module, which runs as __main__, too
REPOSITORY = Path(__file__).parents[2]  # tests.support.paths takes a second to import


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


class ForkServer:
    """A process that forks for each request, started on first use, and anew where it has died meanwhile."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`modules`: imported once; of 'module:function' the function is called, too."""
        self.modules, self.environment = modules, environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._folder = Path()

    def socket(self) -> str:
        """Where it listens."""
        path = self._folder / "socket"
        if self._process is not None and self._process.poll() is None:
            return str(path)
        self._folder = Path(tempfile.mkdtemp(prefix="forking-"))
        Finalize(None, shutil.rmtree, (self._folder, True), exitpriority=0)  # in this process alone
        path = self._folder / "socket"
        command = [sys.executable, "-m", FORKING, "--serve", str(path), *self.modules]
        paths = os.pathsep.join([str(REPOSITORY), *sys.path])
        with (self._folder / "errors.txt").open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=REPOSITORY,
                env={**os.environ, **self.environment, "PYTHONPATH": paths},
            )  # fmt: skip
        assert self._process.stdout is not None
        if not self._process.stdout.readline():  # a line when it listens
            raise self._dead()
        return str(path)

    def call(
        self, function: str, arguments: dict[str, Any], folder: Path, *, seconds: float, kill_after: float | None = None
    ) -> Ended:
        """Call 'module:function' in a child, with arguments and a result that JSON can hold.

        `seconds`: its time limit. `kill_after`: kill its whole process group so many seconds after it began.
        Raises RuntimeError, with what the server wrote, where that dies; the next call has a new one.
        """
        log, result = folder / "log.txt", folder / "result.json"
        result.unlink(missing_ok=True)
        request = {"function": function, "arguments": arguments, "result": str(result)}
        with log.open("wb") as out, open(os.devnull, "rb") as nothing, _asked(self.socket(), request, [
            nothing.fileno(), out.fileno(), out.fileno(),
        ]) as connection:  # fmt: skip
            began = time.monotonic()
            child = _number(connection)
            is_late = False
            if child is not None:
                connection.settimeout(seconds if kill_after is None else min(seconds, kill_after))
                try:
                    status = _number(connection)
                except TimeoutError:
                    is_late = kill_after is None or seconds < kill_after
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.killpg(child, signal.SIGKILL)
                    connection.settimeout(None)
                    status = _number(connection)
            if child is None or status is None:
                raise self._dead()
            passed = time.monotonic() - began
        given = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None
        return Ended(status, is_late, passed, given, log.read_text(encoding="utf-8", errors="replace"))

    def _dead(self) -> RuntimeError:
        assert self._process is not None
        self._process.kill()
        errors = (self._folder / "errors.txt").read_text(encoding="utf-8", errors="replace")
        return RuntimeError(f"the process that forks ended with {self._process.wait()}: {errors[-3000:]}")


def _asked(path: str, request: dict[str, Any], streams: Sequence[int]) -> socket.socket:
    """A connection over which the pid of a child comes, and when it has ended its status, 8 bytes each."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    text = json.dumps(request).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], streams)
    connection.sendall(text)
    return connection


def _number(connection: socket.socket) -> int | None:
    """None where the server has died."""
    with contextlib.suppress(ConnectionError):
        if data := connection.recv(8):
            return int.from_bytes(data, "big", signed=True)
    return None


# -- the server -------------------------------------------------------------------------------------------------------


def serve(path: str, modules: Sequence[str]) -> None:
    """Fork for each connection until standard input ends."""
    for name in modules:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    threading.Thread(target=_end_with_input, daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            if child := os.fork():
                threading.Thread(target=_answer, args=(connection, child), daemon=True).start()
            else:
                listener.close()
                _child(connection)


def _end_with_input() -> None:
    os.read(0, 1)  # who started this process has ended, however
    os._exit(0)


def _answer(connection: socket.socket, child: int) -> None:
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError):  # what it left behind; its pid is no other's before waitpid
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(status.to_bytes(8, "big", signed=True))


def _child(connection: socket.socket) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        connection.sendall(os.getpid().to_bytes(8, "big", signed=True))
        request = _become(connection)
        module, _, name = request["function"].partition(":")
        given = getattr(importlib.import_module(module), name)(**request["arguments"])
        if "result" in request:
            Path(request["result"]).write_text(json.dumps(given), encoding="utf-8")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the interpreter's own end takes seconds after so many imports


def _become(connection: socket.socket) -> dict[str, Any]:
    """Take over the streams of a request, its folder and its environment where it has one; the request."""
    size, streams, *_ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as file:
        request: dict[str, Any] = json.loads(file.read(int.from_bytes(size, "big")))
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if "environment" in request:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
    return request


# -- curate -----------------------------------------------------------------------------------------------------------


def curate(words: list[str]) -> None:
    """In a child: the command."""
    from curation_assets.cli import main

    sys.argv = ["curate", *words]
    main()


def main() -> int:
    """Exit status of the command."""
    request = {
        "function": f"{FORKING}:curate", "arguments": {"words": sys.argv[1:]}, "folder": os.getcwd(),
        "environment": dict(os.environ),
    }  # fmt: skip
    with _asked(os.environ[SOCKET], request, [0, 1, 2]) as connection:
        numbers = [_number(connection), _number(connection)]
    status = 1 if numbers[1] is None else numbers[1]
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
