"""The `curate` command. One file per group of commands; each parses, calls one function and shows its result."""

import contextlib
from typing import Any

import typer
from typer.core import TyperGroup

from curation_assets.cli.commands import OLD_NAMES, command_tree, current_words
from curation_assets.cli.common import errors_as_sentences, json_alone, notice


class Curate(TyperGroup):
    """The whole command: commands are loaded when called, old names are translated, errors become sentences."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": command_tree()})

    def invoke(self, ctx: Any) -> Any:
        """Run a command; with --json, nothing but JSON reaches standard output."""
        words = [*ctx._protected_args, *ctx.args]
        with errors_as_sentences(), json_alone() if "--json" in words else contextlib.nullcontext():
            words, old = current_words(words)
            if old is not None:
                notice(f"`curate {old}` is now `curate {OLD_NAMES[old]}`; the old name goes with version 0.3")
            ctx._protected_args, ctx.args = words[:1], words[1:]
            return super().invoke(ctx)


app = typer.Typer(
    name="curate",
    cls=Curate,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def curate() -> None:
    """From a noisy image–text pool to an audited, high-quality subset."""
