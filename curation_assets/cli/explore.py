"""curate explore: a pool in the viewer Embedding Atlas, on this machine only."""

import importlib.util
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, ProfileOption, notice, settings_from, show, warn
from curation_assets.core import own_pages
from curation_assets.core.errors import ExpectedError
from curation_assets.core.progress import reporter_for
from curation_assets.flow.context import PoolContext
from curation_assets.outputs.explore import DEFAULT_LIMIT, prepare

HOST = "127.0.0.1"
TRIED_PORTS = 20
START_S = 180  # for the viewer to answer: it imports numba, which compiles at first


#: The viewer answers any client and takes posts of any page: its application is put behind ours before it is served.
_GUARDED_VIEWER = """
import importlib.util, sys, uvicorn
spec = importlib.util.spec_from_file_location("own_pages", sys.argv.pop(1))
own_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own_pages)
run = uvicorn.run
kind_of = lambda scope: "page" if scope["path"] == "/" else "file"
uvicorn.run = lambda app, **options: run(own_pages.OwnPagesOnly(app, kind_of), **options)
from embedding_atlas.cli import main
main(prog_name="embedding-atlas")
"""


class ViewerError(ExpectedError):
    """The viewer is missing or does not start."""


@command("explore", "Pools")
def explore(
    pool: Annotated[str, typer.Argument(help="A pool that has run.")],
    limit: Annotated[int, typer.Option(min=1, help="Samples at most, drawn by their id.")] = DEFAULT_LIMIT,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1, or the next free one.")] = 5055,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    profile: ProfileOption = None,
    home: HomeOption = None,
) -> None:
    """Open a pool in a viewer: thumbnails, values, verdicts, and a plane where like samples lie near.

    The viewer is Embedding Atlas, 580 MB: without it the line that installs it is printed. Stop with Ctrl+C.
    """
    program = viewer_program()
    ctx = PoolContext.open(settings_from(home, profile), pool, progress=reporter_for())
    notice("Preparing the pool for the viewer: minutes for the first time of a large one")
    made = prepare(ctx, limit=limit)
    notice(
        f"{made.rows:,} of {made.judged:,} samples, placed by {made.placed_by}: {made.path}"
        + (" (as it was)" if made.is_reused else "")
    )
    for reason, count in made.without_picture.items():
        warn(f"{count:,} samples have no picture: {reason}")
    chosen = free_port(port)
    if chosen != port:
        notice(f"port {port} is in use; taking {chosen}")
    with viewer(program, made.path, chosen) as (url, process):
        try:
            show(url)
            notice("Stop with Ctrl+C")
            if opens:
                webbrowser.open(url)
            # not wait(): Polars installs a handler of SIGINT after which a blocked call goes on (SA_RESTART)
            while process.poll() is None:
                time.sleep(0.2)
        except KeyboardInterrupt:
            notice("viewer stopped")
            return
    raise ViewerError(f"the viewer ended by itself with status {process.returncode}; its log: {_log(made.path)}")


def viewer_program() -> list[str]:
    """How Embedding Atlas is started behind `core/own_pages.py`. Raises ViewerError where it is not installed."""
    if importlib.util.find_spec("embedding_atlas") is None:
        pip = f"{shlex.quote(sys.executable)} -m pip"
        raise ViewerError(
            "the viewer Embedding Atlas (580 MB) is not installed; beside what is here, in the versions that it has: "
            f"{pip} freeze --exclude-editable | {pip} install -c /dev/stdin 'embedding-atlas>=0.20'"
        )
    return [sys.executable, "-c", _GUARDED_VIEWER, own_pages.__file__]


def free_port(first: int) -> int:
    """The first free port of 127.0.0.1 from `first` on. Raises ViewerError where the next ones are all in use."""
    tried = range(first, min(first + TRIED_PORTS, 65536))
    for port in tried:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed a moment ago is free
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ViewerError(f"ports {tried[0]} to {tried[-1]} of {HOST} are all in use; give another with --port")


@contextmanager
def viewer(program: Sequence[str], path: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The viewer's server over a file of `outputs.explore`: its address, and its process. It ends with the block.

    What the page computes, it computes in the browser: the server hands out files only. Raises ViewerError where it
    does not answer, or would answer other sites.
    """
    options = ["--text", "caption", "--image", "image", "--x", "x", "--y", "y", "--disable-projection"]
    command = [*program, str(path), *options, "--duckdb", "wasm"]
    command += ["--host", HOST, "--port", str(port), "--no-auto-port"]
    # Its cache (settings of the page) lies beside the file, where a takedown deletes it; it loads no model.
    environment = {**os.environ, "XDG_CACHE_HOME": str(path.parent / "cache"), "HF_HUB_OFFLINE": "1"}
    url = f"http://{HOST}:{port}/"
    with _log(path).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=path.parent
        )
        try:
            _wait_for(url, process, _log(path))
            yield url, process
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # a page keeps a connection open
                process.kill()
                process.wait()


def _log(path: Path) -> Path:
    return path.parent / "viewer.log"


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to this machine
    while True:
        try:
            direct.open(f"{url}data/metadata.json", timeout=5).close()
            break
        except OSError:
            if process.poll() is not None:
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise ViewerError(
                    f"the viewer ended with status {process.returncode}: {' '.join(last)}; its log: {log}"
                ) from None
            if time.monotonic() > end:
                raise ViewerError(f"the viewer did not answer within {START_S} s; its log: {log}") from None
            time.sleep(0.2)
    foreign = urllib.request.Request(f"{url}data/metadata.json", headers={"Sec-Fetch-Site": "cross-site"})
    try:
        direct.open(foreign, timeout=30).close()
    except urllib.error.HTTPError as refused:
        refused.close()
        return
    raise ViewerError("this version of the viewer would answer pages of other sites; embedding-atlas 0.26 does not")
