"""The Dagster UI and daemon, as `dagster dev` runs them, for this machine's own browser alone.

Whatever the UI can do, a GraphQL request can, without a password, and Dagster takes a mutation from a GET as well. So
pages of other sites are kept out (core/own_pages.py), and GraphQL is a POST of JSON.
"""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Match

from curation_assets.core.errors import ExpectedError
from curation_assets.core.own_pages import HOST, OWN_NAMES, Kind, Message, OwnPagesOnly, listening
from curation_assets.core.settings import Settings, resource_path
from curation_assets.defs.launch import prepare_instance
from curation_assets.foreign.dagster_processes import Ui, with_ui
from curation_assets.sources.declaration import declaration_sha256, list_pools
from curation_assets.stores.lease import serving

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks at the declarations of pools
RELOAD_SECONDS = 600.0
LOCATION = "curation"  # of workspace.yaml
RELOAD = """
mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) {
  __typename ... on PythonError { message } ... on UnauthorizedError { message } } }
"""
WAIT_SECONDS = 15  # for the daemon to end, before it is killed
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class DaemonEndedError(ExpectedError):
    """Sensors and schedules no longer run."""


def guarded(app: Starlette, allow_hosts: Sequence[str] = ()) -> OwnPagesOnly:
    """Dagster's application for own pages only. `allow_hosts`: names besides this machine's own, such as a proxy's.

    Raises ValueError for what is no host name.
    """
    for name in allow_hosts:
        if not _HOST_NAME.fullmatch(name):
            raise ValueError(f"--allow-host takes a host name without port, such as curate.example, got {name!r}")

    def kind_of(scope: Message) -> Kind:
        """The kind of a request by its route: the one document is a page, a POST (GraphQL, too) an action."""
        route = next((one for one in app.routes if one.matches(scope)[0] is not Match.NONE), None)
        if getattr(route, "name", None) == "index_html_endpoint":
            return "page"
        return "action" if "POST" in (getattr(route, "methods", None) or ()) else "file"

    return OwnPagesOnly(app, kind_of, (*OWN_NAMES, *(name.lower() for name in allow_hosts)))


def serve(
    settings: Settings, port: int, allow_hosts: Sequence[str], *, on_ready: Callable[[str], None] = lambda url: None
) -> None:
    """UI on 127.0.0.1 and daemon, with one code server for both, until SIGINT or SIGTERM. Port 0 takes a free one.

    `on_ready` receives the URL once it answers. Raises OSError for a port in use, PoolHeldError where another one
    serves the same instance, ValueError as `guarded`, DaemonEndedError where the daemon ends by itself.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(settings.dagster_home, f"curate ui --port {port}"))
        listener = stack.enter_context(listening(port))
        instance = stack.enter_context(prepare_instance(settings))
        loaded = declarations(settings)  # before the code server reads them: what is edited meanwhile is loaded anew
        os.environ["CURATION_HOME"] = str(settings.home)
        os.environ["DAGSTER_IS_DEV_CLI"] = "1"
        url = f"http://{HOST}:{listener.getsockname()[1]}"

        def serve_with_daemon(ui: Ui) -> None:
            server = uvicorn.Server(uvicorn.Config(guarded(ui.app, allow_hosts), log_level="warning"))
            with _daemon(ui.daemon) as daemon, _following_declarations(settings, url, loaded):

                def stop_with_daemon() -> None:
                    daemon.wait()
                    server.should_exit = True

                threading.Thread(target=stop_with_daemon, daemon=True).start()
                on_ready(url)
                server.run(sockets=[listener])  # raises the signal again that ended it
                raise DaemonEndedError(f"Dagster's daemon ended with status {daemon.wait()}; its last lines are above")

        with_ui(instance, resource_path("workspace.yaml"), serve_with_daemon)


@contextlib.contextmanager
def _following_declarations(settings: Settings, url: str, loaded: dict[str, str]) -> Iterator[None]:
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
                _reload(url)
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


def _reload(url: str) -> None:
    """As the button Reload of the UI at `url` does it. Raises OSError where it does not answer, ValueError as below."""
    query = json.dumps({"query": RELOAD, "variables": {"name": LOCATION}}).encode()
    request = urllib.request.Request(f"{url}/graphql", query, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=RELOAD_SECONDS) as answer:
        done = json.load(answer)["data"]["reloadRepositoryLocation"]
    if done["__typename"] != "WorkspaceLocationEntry":
        raise ValueError(done.get("message", done["__typename"]))


@contextlib.contextmanager
def _daemon(command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
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
