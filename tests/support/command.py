"""The command `curate`, in this process."""

from pathlib import Path

from typer.testing import CliRunner, Result

from curation_assets.cli import app


def curate(*words: object, home: Path | None = None, width: int = 250, typed: str | None = None) -> Result:
    """Exit status and output of `curate WORDS [--home HOME]`; `width`: of the terminal; `typed`: its input."""
    given = [*words] if home is None else [*words, "--home", home]
    return CliRunner().invoke(app, [str(word) for word in given], input=typed, env={"COLUMNS": str(width)})
