"""python -m tests.support.forked_curate WORDS: what `curate WORDS` does, in a fork of a server that has the libraries.

Pages have a hundred commands, each of which would load for seconds what it needs of torch, transformers and open_clip.
The server is started by `socket_of_server`, one per test process, and ends with it.
"""

import atexit
import functools
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SOCKET = "FORKED_CURATE"  # variable of the environment: where the server listens


@functools.cache
def socket_of_server() -> str:
    """Where a server of this process listens; starts it."""
    path = str(Path(tempfile.mkdtemp(prefix="forked_curate_")) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, "--serve", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    server.stdout.readline()  # it listens
    return path


def serve(path: str) -> None:
    """Fork for each connection; its words, folder, environment and streams become those of the child."""
    from curation_assets.core.roles import ROLES
    from curation_assets.core.stages import STAGES

    modules = ["cli", "definitions", "defs.launch", *(f"{stage.package}.tables" for stage in STAGES.values())]
    for name in (*modules, *(f"engines.{role}" for role in sorted(ROLES))):
        importlib.import_module(f"curation_assets.{name}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            if child := os.fork():
                threading.Thread(target=_answer, args=(connection, child), daemon=True).start()
                continue
            listener.close()
            _become(connection)
            break
    from curation_assets.cli import main

    main()


def _answer(connection: socket.socket, child: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with connection:
        connection.sendall(str(status if status >= 0 else 128 - status).encode())


def _become(connection: socket.socket) -> None:
    size, streams, *_ = socket.recv_fds(connection, 8, 3)
    words = json.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(words["folder"])
    os.environ.clear()
    os.environ.update(words["environment"])
    sys.argv = ["curate", *words["arguments"]]


def main() -> int:
    """Exit status of the command."""
    words = {"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(words).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(text)
        return int(connection.recv(8) or 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
