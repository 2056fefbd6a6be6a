"""curate doctor: is everything here that a run needs?"""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import typer
from rich.text import Text

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, show, show_json
from curation_assets.core.settings import cache_root, home_of, own_dagster_home
from curation_assets.operations import doctor as checks
from curation_assets.operations.doctor import Check, Finding

COLOURS = {"ok": "green", "warning": "yellow", "broken": "bold red"}


@command("doctor", "Health")
def doctor(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Look at what every run needs: packages, GPU, disks, Dagster, pools; exit 1 where something is broken."""
    findings = checks.findings_of(_checks(home))
    if as_json:
        show_json({"is_broken": checks.is_broken(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _show(finding)
    if checks.is_broken(findings):
        raise typer.Exit(1)


def _checks(home: Path | None) -> dict[str, Check]:
    # Not by `settings_from`: a broken profile or number in the environment is a finding of one check, not the end.
    place = home_of(home)
    dagster_home = own_dagster_home() or place / "dagster"

    def disks() -> Iterator[Finding]:
        yield from checks.disks({"home": place, "temporary": Path(tempfile.gettempdir()), "cache": cache_root()})

    def caches() -> Iterator[Finding]:
        yield from checks.caches(cache_root())

    def telemetry() -> Iterator[Finding]:
        from curation_assets.defs.doctor import telemetry

        yield from telemetry(dagster_home)

    def dagster() -> Iterator[Finding]:
        from curation_assets.defs.doctor import instance

        yield from instance(dagster_home)

    return {
        "python": checks.python,
        "packages": checks.packages,
        "torch": checks.torch_and_gpu,
        "java": checks.java,
        "disks": disks,
        "caches": caches,
        "dagster": dagster,
        "pools": partial(checks.pools, place),
        "telemetry": telemetry,
    }


def _show(finding: Finding) -> None:
    show(
        Text.assemble(
            (f"{finding.state:<8}", COLOURS[finding.state]),
            (f"{finding.check:<10} ", "bold"),
            finding.sentence,
            f". To do: {finding.advice}" if finding.advice else "",
        )
    )
