"""curate pool check-source: a source of one's own against what every source keeps to."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import notice, show_checked
from curation_assets.sources.contract import check_own_source


@command("pool check-source", "Pools")
def check_source(
    file: Annotated[Path, typer.Argument(help="The source: a Python file that defines SOURCE.", exists=True)],
    example: Annotated[Path, typer.Argument(help="A small file or folder of its kind.", exists=True)],
) -> None:
    """Try a source of your own on a small example; exit 1 where it breaks a rule.

    Nothing is written into a home, and no URL is opened (docs/user/own_source.md).
    """
    show_checked(check_own_source(file, example))
    notice(f"Next: copy {file} into pools/sources of a home; `curate pool add NAME {example}` finds it there")
