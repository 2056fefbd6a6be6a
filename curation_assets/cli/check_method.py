"""curate methods check: a method of one's own against what every method keeps to."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import notice, show_checked
from curation_assets.scoring.method_contract import check_own_method


@command("methods check", "Scores")
def check_method(
    file: Annotated[Path, typer.Argument(help="The method: a Python file that defines METHOD.", exists=True)],
) -> None:
    """Try a method of your own on its worked example; exit 1 where it breaks a rule.

    Nothing is written, no model is loaded (docs/user/own_methods.md).
    """
    show_checked(check_own_method(file))
    notice(f"Next: copy {file} into pools/methods of a home; a pool's option methods: [{file.stem}] runs it")
