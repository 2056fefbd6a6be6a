"""curate mcp: read-only answers about pools for agents, over the Model Context Protocol."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, notice, settings_from, show
from curation_assets.core.errors import ExpectedError
from curation_assets.stores.documents import save_text

SKILL = Path(__file__).parents[1] / "operations" / "agents" / "SKILL.md"


@command("mcp", "Why, and what if")
def mcp(
    http: Annotated[bool, typer.Option("--http", help="On 127.0.0.1 instead of standard input and output.")] = False,
    port: Annotated[int, typer.Option(help="Port of --http; 0 takes a free one.")] = 8125,
    skill: Annotated[bool, typer.Option("--skill", help="Print how an agent uses this package, and end.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --skill: write it there, such as .claude/skills/curate/SKILL.md.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Answer agents' questions about the pools (MCP): pools, tables, why, diff, lineage, cost, SQL, reports.

    Nothing is written, run or taken down. Needs the extra `agents`.
    """
    if skill or out is not None:
        text = SKILL.read_text(encoding="utf-8")
        if out is None:
            for line in text.rstrip().split("\n"):
                show(line)
            return
        save_text(out, text, is_new=True)
        show(f"Written {out}")
        return
    try:
        from curation_assets.operations.agents.server import make_server, serve_http
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ExpectedError("the package mcp is not installed: pip install 'curation_assets[agents]'") from None
    settings = settings_from(home)
    if http:
        serve_http(settings, port, on_ready=lambda url: notice(f"MCP server: {url}"))
    else:
        make_server(settings).run("stdio")
