"""What every command shares: consoles, the option for the home folder, and errors shown as sentences."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.settings import Settings, load_settings

#: Columns of what goes to a file or a pipe. Only a terminal's tables are fitted to its width.
PIPED_WIDTH = 250

console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
error_console = Console(stderr=True)

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Folder for everything written (default: $CURATION_HOME or ./data)."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="embedded, hub, or a profile file (default: $CURATION_PROFILE or embedded)."),
]


def settings_from(home: Path | None, profile: str | None = None) -> Settings:
    """Settings of this call, with torch bound to the number of threads that they name."""
    return load_settings(home, profile)


def errors_as_sentences(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show expected errors (bad values, absent files or models, damaged tables) as a sentence, exit 1; a bug keeps its
    traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            error_console.print("stopped; finished tables and shards are kept, the same command goes on from here")
            raise typer.Exit(130) from None
        except EXPECTED_ERRORS as error:
            error_console.print(f"[bold red]error[/] {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error

    return wrapped
