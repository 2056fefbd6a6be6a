"""curate ui: Dagster's own pages over the pools."""

from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, notice, settings_from


@command("ui", "Pools")
def ui(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 3000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Answer requests for this host too, such as a proxy's on this machine (repeat)."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Open the Dagster UI and daemon on 127.0.0.1: the same graph and sensors.

    It has no passwords: it answers this machine's own browser, at 127.0.0.1 or localhost. Stop with Ctrl+C.
    """
    from curation_assets.defs.webserver import serve  # Dagster takes seconds to import

    serve(settings_from(home), port, allow_host or (), on_ready=lambda url: notice(f"Dagster UI: {url}"))
