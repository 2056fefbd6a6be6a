"""python -m benchmarks.papers: the papers' tables and figures for pools and files of one's own."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from benchmarks.papers import encoders, gallery, good, plots, show_tables, suite
from benchmarks.papers.coverage import coverage_lines, write_page
from curation_assets.cli.common import errors_as_sentences, json_alone, show

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
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def papers(
    ctx: typer.Context,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Every table and figure of the papers, with what fills it.")
    ] = False,
    into: Annotated[Path | None, typer.Option(help="With --coverage: write it into this page.")] = None,
) -> None:
    """The papers' tables and figures (docs/user/papers.md), from a checkout."""
    if ctx.invoked_subcommand is not None:
        return
    if into is not None and not coverage:
        raise ValueError("--into writes the coverage into a page; give --coverage, too")
    if not coverage:
        show(ctx.get_help())
    elif into is not None:
        write_page(into)
    else:
        for line in coverage_lines():
            show(line)


app.command("tables")(show_tables.tables)
app.command("plot")(plots.plot)
app.command("gallery")(gallery.gallery)
app.command("good")(good.good)
app.command("suite")(suite.suite)
app.command("retrieval")(encoders.retrieval)
app.command("zero-shot")(encoders.zero_shot)
app.command("karpathy")(encoders.karpathy)

if __name__ == "__main__":
    app()
