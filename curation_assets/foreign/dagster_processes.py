"""Dagster's web application, and the code server that it shares with the daemon."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import yaml
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette

from curation_assets.core.errors import ExpectedError
from curation_assets.foreign.guards import SHARED_CODE_SERVER


class ServerNotStartedError(ExpectedError):
    """This version of Dagster starts its web server in a way that we cannot put our own checks before."""


@dataclass(frozen=True)
class Ui:
    """A web application that is ready to be served."""

    app: Starlette
    daemon: Sequence[str]  # the command of the daemon that belongs to it


def with_ui(instance: dg.DagsterInstance, workspace: Path, serve: Callable[[Ui], None]) -> None:
    """Call `serve` with the application of a workspace, and keep what that needs until it returns.

    Raises ServerNotStartedError. Upstream: `dagster dev` as a function that returns its application and the daemon's
    command, so that a program serves them behind its own checks.
    """
    if SHARED_CODE_SERVER.is_on():
        with _sharing_a_code_server(instance, workspace) as ui:
            serve(ui)
        return
    raise ServerNotStartedError(
        f"dagster-webserver {dg.__version__} may start its server in another way than those that were tried, and then "
        f"without the checks that keep other sites out; install dagster{SHARED_CODE_SERVER.tried}"
    )


@contextlib.contextmanager
def _sharing_a_code_server(instance: dg.DagsterInstance, workspace: Path) -> Iterator[Ui]:
    from dagster._cli.proxy_server_manager import ProxyServerManager
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget

    with contextlib.ExitStack() as stack:
        target = WorkspaceFileTarget([str(workspace)])
        shared = stack.enter_context(ProxyServerManager(instance, target, "WARNING"))
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workspace.yaml"
        file.write_text(yaml.safe_dump({"load_from": list(shared.get_code_server_specs())}), encoding="utf-8")
        context = stack.enter_context(
            WorkspaceProcessContext(instance, WorkspaceFileTarget([str(file)]), version=dg.__version__, read_only=False)
        )
        # the instance as it was loaded here: by its folder the daemon might miss it (`set_dagster_home`)
        ref = dg.serialize_value(instance.get_ref())
        daemon = [sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(file), "--instance-ref", ref]
        yield Ui(create_app_from_workspace_process_context(context), daemon)
