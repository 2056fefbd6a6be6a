"""The `curate` command. One file per group of commands; each parses, calls one function and shows its result."""

import atexit
import contextlib
import difflib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from curation_assets.cli.commands import FORMER, command_tree, entries
from curation_assets.cli.common import errors_as_sentences, json_alone, warn
from curation_assets.core.version import __version__

WORDS = "curation_assets.words"  # of the command, in click's context


class Curate(TyperGroup):
    """The whole command: commands are loaded when called, errors become sentences."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": command_tree()})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words of the command: all but the options of `curate` itself."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        ctx.meta[WORDS] = words
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word. Of a word that only a group has, the error names it: explain, icc explain."""
        for option, words in FORMER.items():
            if args[:1] == ["run"] and option in args:
                warn(f"run … {option} is `{words} POOL` now; the old spelling leaves with version 0.5")
                args = [words.split()[-1], *(word for word in args[1:] if word != option)]
        if args and args[0] not in self.commands and args[0][:1] != "-":
            names = {entry.name.split()[-1]: entry.name for entry in reversed(entries())}
            near = difflib.get_close_matches(args[0], [*self.commands, *names], n=1)
            meant = names.get(near[0], near[0]) if near else None
            if meant is not None and meant not in self.commands:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; with --json, nothing but JSON reaches standard output."""
        words = ctx.meta[WORDS]
        with errors_as_sentences(), json_alone() if "--json" in words else contextlib.nullcontext():
            return super().invoke(ctx)


app = typer.Typer(
    name="curate",
    cls=Curate,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"curation_assets {__version__}")
        raise typer.Exit


@app.callback()
def curate(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """From a noisy image–text pool to an audited, high-quality subset."""


def main() -> None:
    """What `curate` runs: the command, then an exit that leaves out the interpreter's teardown of modules.

    In that teardown DuckDB's binding (nanobind) prints a page of objects that it takes for leaked, on standard error,
    whenever img2dataset was loaded too: libraries of the latter keep DuckDB's modules alive. The binding has no switch
    for it. Registered first, `leave` is the last of the exit functions: threads are joined by then, workers ended and
    temporary files removed. The status is the command's own.
    """
    # read by OpenMP when it is loaded: threads that wait for work spin for it by default, which on a machine
    # with other work cost 11 times the CPU seconds and 4 times the time of an image's embedding (docs/decisions/0057)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    status = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # a reader that has left
                stream.flush()
        os._exit(status)

    atexit.register(leave)
    try:
        app()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
