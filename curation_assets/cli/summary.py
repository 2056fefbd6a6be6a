"""curate summary: what a release answers to the forms that ask for the sources of training data."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, notice, settings_from, show, show_json, warn
from curation_assets.cli.release import PoolOfRelease

MISSING_SHOWN = 5


@command("summary", "Subsets")
def summary(
    release: Annotated[str | None, typer.Argument(metavar="RELEASE", help="Its name or folder.")] = None,
    template: Annotated[str, typer.Option("--template", help="eu-gpai, ca-ab2013 or croissant-rai.")] = "eu-gpai",
    final: Annotated[
        bool, typer.Option("--final", help="Exit 1, and list it, where something is left to be provided.")
    ] = False,
    sme: Annotated[
        bool, typer.Option("--sme", help="Of a small or medium-sized company: 5 % of the domains or 1,000, the lower.")
    ] = False,
    declared: Annotated[
        Path | None, typer.Option("--declared", help="What only you can attest; by default summary.yaml of the home.")
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="Write that file with every key to be filled in.")] = False,
    pool: PoolOfRelease = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Fill in a form on training data from a release: EU, California, Croissant RAI.

    Writes summary.md, summary.json and domains.csv beside the release. It is never legal advice, never an attestation.
    """
    from curation_assets.operations.summaries import write_summary
    from curation_assets.outputs.summary.declared import SUMMARY_FILE, blank_declared
    from curation_assets.outputs.summary.forms import get_form
    from curation_assets.stores.atomic import check_new
    from curation_assets.stores.documents import save_text
    from curation_assets.stores.releases import find_release

    settings = settings_from(home)
    path = settings.home / SUMMARY_FILE if declared is None else declared.expanduser()
    if init:
        check_new(path)
        save_text(path, blank_declared())
        notice(f"fill in {path}")
    if release is None:
        if not init:
            raise ValueError("give a RELEASE (`curate release list`), or --init to begin summary.yaml")
        return
    if declared is not None and not path.is_file():
        raise FileNotFoundError(f"no file {path}; `curate summary --init --declared {path}` begins it")
    written = write_summary(
        settings.home, find_release(settings.home, release, pool), get_form(template), path, is_sme=sme
    )
    if as_json:
        show_json({"folder": str(written.folder), "to_be_provided": written.missing})
    else:
        for file in sorted(written.folder.iterdir()):
            show(str(file))
    if written.missing and final:
        lines = "\n".join(f"  {line}" for line in written.missing)
        raise ValueError(f"{len(written.missing)} answers are left to be provided in {path}:\n{lines}")
    if written.missing:
        few = "; ".join(written.missing[:MISSING_SHOWN])
        warn(f"{len(written.missing)} answers are to be provided in {path}: {few}, …; --final lists them all")
