"""The Dagster UI and daemon, as `dagster dev` runs them, for this machine's own browser alone.

Whatever the UI can do, a GraphQL request can, without a password, and Dagster takes a mutation from a GET as well. So
pages of other sites are kept out (core/own_pages.py), and GraphQL is a POST of JSON.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import dagster as dg
import uvicorn
import yaml
from dagster import __version__
from dagster._cli.proxy_server_manager import ProxyServerManager
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.routing import Match

from curation_assets.core.errors import ExpectedError
from curation_assets.core.own_pages import OWN_NAMES, Kind, Message, OwnPagesOnly
from curation_assets.core.settings import Settings, resource_path
from curation_assets.defs.launch import prepare_instance
from curation_assets.sources.declaration import declaration_sha256, list_pools

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
LOOK_SECONDS = 2.0  # between two looks at the declarations of pools
WAIT_SECONDS = 15  # for the daemon to end, before it is killed
_HOST_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")


class DaemonEndedError(ExpectedError):
    """Sensors and schedules no longer run."""


def guarded(app: Starlette, allow_hosts: Sequence[str] = ()) -> OwnPagesOnly:
    """Dagster's application for own pages only. `allow_hosts`: names besides this machine's own, such as a proxy's.

    Raises ValueError for what is no host name.
    """
    for name in allow_hosts:
        if not _HOST_NAME.match(name):
            raise ValueError(f"--allow-host takes a host name without port, such as curate.example, got {name!r}")

    def kind_of(scope: Message) -> Kind:
        """By the route: pages are the application's one document, what takes a POST is an action (GraphQL, too)."""
        route = next((one for one in app.routes if one.matches(scope)[0] is not Match.NONE), None)
        if getattr(route, "name", None) == "index_html_endpoint":
            return "page"
        return "action" if "POST" in (getattr(route, "methods", None) or ()) else "file"

    return OwnPagesOnly(app, kind_of, (*OWN_NAMES, *(name.lower() for name in allow_hosts)))


def serve(
    settings: Settings, port: int, allow_hosts: Sequence[str], *, on_ready: Callable[[str], None] = lambda url: None
) -> None:
    """UI on 127.0.0.1 and daemon, with one code server for both, until SIGINT or SIGTERM. Port 0 takes a free one.

    `on_ready` receives the URL once it answers. Raises OSError for a port in use, ValueError as `guarded`,
    DaemonEndedError where the daemon ends by itself.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listening(port))
        instance = stack.enter_context(prepare_instance(settings))
        loaded = declarations(settings)  # before the code server reads them: what is edited meanwhile is loaded anew
        os.environ["CURATION_HOME"] = str(settings.home)
        os.environ["DAGSTER_IS_DEV_CLI"] = "1"
        shared = stack.enter_context(ProxyServerManager(instance, _target(resource_path("workspace.yaml")), "WARNING"))
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workspace.yaml"
        workspace.write_text(yaml.safe_dump({"load_from": list(shared.get_code_server_specs())}), encoding="utf-8")
        context = stack.enter_context(
            WorkspaceProcessContext(instance, _target(workspace), version=__version__, read_only=False)
        )
        app = guarded(create_app_from_workspace_process_context(context), allow_hosts)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        daemon = stack.enter_context(_daemon(workspace, instance))

        def stop_with_daemon() -> None:
            daemon.wait()
            server.should_exit = True

        threading.Thread(target=stop_with_daemon, daemon=True).start()
        stack.enter_context(_following_declarations(settings, context, loaded))
        on_ready(f"http://{HOST}:{listener.getsockname()[1]}")
        server.run(sockets=[listener])  # raises the signal again that ended it
        raise DaemonEndedError(f"Dagster's daemon ended with status {daemon.wait()}; its last lines are above")


def _target(workspace: Path) -> WorkspaceFileTarget:
    return WorkspaceFileTarget([str(workspace)])


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise OSError(error.errno, f"{HOST}:{port} cannot be used ({error.strerror}); give another --port") from error
    with listener:
        yield listener


@contextlib.contextmanager
def _following_declarations(
    settings: Settings, context: WorkspaceProcessContext, loaded: dict[str, str]
) -> Iterator[None]:
    """While inside, load the code location anew when a pool was added, changed or removed since `loaded`.

    A pool that cannot be loaded is shown as broken; the others go on.
    """
    ended = threading.Event()

    def follow() -> None:
        nonlocal loaded
        seen = loaded
        while not ended.wait(LOOK_SECONDS):
            now = declarations(settings)
            is_at_rest, seen = now == seen, now
            if now == loaded or not is_at_rest:
                continue
            loaded = now
            try:
                for name in context.create_request_context().code_location_names:
                    context.reload_code_location(name)
            except Exception as error:  # whatever somebody is writing there: the next version of it may be right
                logger.warning("pools are not loaded anew: %s: %s", type(error).__name__, error)
                continue
            logger.warning("pools loaded anew: %s", ", ".join(list_pools(settings)) or "none")

    thread = threading.Thread(target=follow, name="declarations of pools", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def declarations(settings: Settings) -> dict[str, str]:
    """Declared pool → hash of its declaration."""
    return {name: declaration_sha256(settings, name) for name in list_pools(settings)}


@contextlib.contextmanager
def _daemon(workspace: Path, instance: dg.DagsterInstance) -> Iterator["subprocess.Popen[bytes]"]:
    # the instance as it was loaded here: by its folder the daemon might miss it (`find_own_configuration`)
    ref = dg.serialize_value(instance.get_ref())
    command = [sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(workspace), "--instance-ref", ref]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
