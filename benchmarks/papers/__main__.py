"""python -m benchmarks.papers: the papers' tables and figures for pools and files of one's own."""

import contextlib
from typing import Any

import typer
from typer.core import TyperGroup

from benchmarks.papers import encoders, show_tables, suite
from curation_assets.cli.common import errors_as_sentences, json_alone

JSON = "benchmarks.papers.json"  # in click's context


class Papers(TyperGroup):
    """The whole command: errors become sentences, as in `curate`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep whether JSON is wanted."""
        ctx.meta[JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; with --json, nothing but JSON reaches standard output."""
        with errors_as_sentences(), json_alone() if ctx.meta[JSON] else contextlib.nullcontext():
            return super().invoke(ctx)


app = typer.Typer(
    name="python -m benchmarks.papers",
    help="The papers' tables and figures (docs/user/papers.md), from a checkout.",
    cls=Papers,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("tables")(show_tables.tables)
app.command("suite")(suite.suite)
app.command("retrieval")(encoders.retrieval)
app.command("zero-shot")(encoders.zero_shot)
app.command("karpathy")(encoders.karpathy)

if __name__ == "__main__":
    app()
