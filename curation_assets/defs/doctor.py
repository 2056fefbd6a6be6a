"""Checks of the Dagster instance for `curate doctor`. They make nothing and report no run."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from curation_assets.core.disk import is_database
from curation_assets.core.yaml_files import read_yaml
from curation_assets.operations.doctor import Finding


def telemetry(dagster_home: Path) -> Iterator[Finding]:
    """Whether anything reports what is done here to its makers."""
    config = dagster_home / "dagster.yaml"
    if not config.is_file():
        yield Finding("telemetry", "ok", "no instance yet; in the one that the first run makes Dagster's is off")
        return
    loaded = read_yaml(config)  # no storage is opened
    if (loaded.get("telemetry") or {}).get("enabled", True):
        yield Finding(
            "telemetry", "warning", f"{config} leaves Dagster's on", "put `telemetry: {enabled: false}` into it"
        )
    elif glob.has_magic(str(dagster_home)):
        sentence = f"Dagster's is off, but its own commands would miss {config}: they read [, * and ? as patterns"
        yield Finding(
            "telemetry", "warning", sentence, "set DAGSTER_DISABLE_TELEMETRY=1 for them, or rename the folder"
        )
    else:
        yield Finding("telemetry", "ok", "Dagster's is off")


def instance(dagster_home: Path) -> Iterator[Finding]:
    """The instance: writable, its schema current, whose slots are taken, which runs are dead."""
    if not (dagster_home / "dagster.yaml").is_file():
        yield Finding("dagster", "ok", f"no instance yet; the first run makes it in {dagster_home}")
        return
    locked = [path for path in (dagster_home, *dagster_home.rglob("*.db")) if not os.access(path, os.W_OK)]
    if locked:
        yield Finding(
            "dagster", "broken", f"not writable: {locked[0]}", "give yourself write access, or use another --home"
        )
        return
    broken = [path for path in dagster_home.rglob("*.db") if not is_database(path)]
    if broken:
        advice = "move it away: the next run makes a new one; tables stay, only the UI's history is lost"
        yield Finding("dagster", "broken", f"{broken[0]} is damaged", advice)
        return
    import dagster as dg

    from curation_assets.defs.dead_runs import dead_runs, slots
    from curation_assets.foreign.dagster_runs import set_dagster_home

    with dg.DagsterInstance.from_config(str(set_dagster_home(dagster_home))) as opened:
        versions = [opened.run_storage.alembic_version(), opened.event_log_storage.alembic_version()]
        behind = [version for version in versions if version and version[0] != version[1]]
        if behind:
            advice = f"DAGSTER_HOME={dagster_home} dagster instance migrate"
            yield Finding("dagster", "broken", f"its schema is {behind[0][0]}, expected {behind[0][1]}", advice)
            return
        yield Finding("dagster", "ok", f"{dg.__version__}, instance in {dagster_home}, schema current")
        held = slots(opened)
        for sentence in held:
            yield Finding("slots", "ok", sentence)
        if not held:
            yield Finding("slots", "ok", "none is held")
        dead = dead_runs(opened)
        for run, process in dead:
            sentence = f"run {run.run_id[:8]} of {process} has ended unfinished"
            yield Finding(
                "runs", "warning", sentence, "the next `curate run`, or the daemon, reports it and frees its slots"
            )
        if not dead:
            yield Finding("runs", "ok", "none is dead")
