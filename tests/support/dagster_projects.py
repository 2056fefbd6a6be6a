"""Dagster projects of a user's own, which have this checkout installed."""

import os
import re
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY


def environment_of_projects(found: Path) -> dict[str, str]:
    """With this checkout on the path, and in `found` the entry point that an installation of it has."""
    (found / "curation_assets-0.dist-info").mkdir(parents=True)
    declared = re.search(
        r'\[project.entry-points."(.*?)"\].*\n(.*)', (REPOSITORY / "pyproject.toml").read_text("utf-8")
    )
    assert declared is not None
    (found / "curation_assets-0.dist-info" / "entry_points.txt").write_text(
        f"[{declared[1]}]\n{declared[2].replace(chr(34), '')}\n"
    )
    (found / "curation_assets-0.dist-info" / "METADATA").write_text("Name: curation_assets\nVersion: 0\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "CURATION_"))}
    return {
        **outside, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(found), str(REPOSITORY)]), "DAGSTER_DISABLE_TELEMETRY": "1",
        "COLUMNS": "200", "CURATION_WORKERS": "1",
    }  # fmt: skip
