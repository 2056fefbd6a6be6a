"""curate doctor: a line per finding, whatever is broken, and nothing made or changed by looking."""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.dead_runs import PROCESS_START, process_tags
from curation_assets.defs.launch import prepare_instance
from curation_assets.operations import doctor
from curation_assets.operations.doctor import Finding, findings_of, is_broken
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.lease import pool_lease
from tests.support.command import curate
from tests.support.paths import REPOSITORY

CHECKS = (
    "python",
    "packages",
    "torch",
    "java",
    "home",
    "temporary",
    "cache",
    "hub cache",
    "dagster",
    "pools",
    "telemetry",
)


def looked(home: Path) -> tuple[int, list[Finding]]:
    """Exit status and findings."""
    done = curate("doctor", "--home", home, "--json")
    assert done.exit_code in (0, 1), done.output
    answer = json.loads(done.stdout)
    assert answer["is_broken"] == bool(done.exit_code)
    return done.exit_code, [Finding(**finding) for finding in answer["findings"]]


def about(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def test_a_sound_installation_is_looked_at_without_loading_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from curation_assets.cli import app\n"
        "try: app()\n"
        "except SystemExit as stop: status = stop.code\n"
        "print(sorted({'torch', 'transformers', 'dagster'} & set(sys.modules)), status, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "doctor", "--home", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stderr.splitlines()[-1].startswith("[] "), done.stderr
    for check in CHECKS:
        assert f" {check} " in done.stdout, check
    assert not (tmp_path / "none").exists()


def test_what_is_left_out_of_a_library_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.state for finding in about(looked(tmp_path)[1], "packages")] == ["ok"]
    monkeypatch.setenv("CURATION_FOREIGN_OFF", "runs_of_commands")
    (_, finding) = about(looked(tmp_path)[1], "packages")
    assert finding.state == "warning"
    assert finding.sentence.startswith("runs_of_commands of dagster ")
    assert finding.sentence.endswith("runs of commands print late, through two more processes, and Jobs has them not")


def test_every_broken_part_is_one_finding_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("caption\na red kite\n")
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "good", tmp_path / "captions.csv")
    (tmp_path / "pools" / "typo.yaml").write_text("kind: captoins\n")
    (tmp_path / "pools" / "no_yaml.yaml").write_text("{: [")
    (tmp_path / "dagster" / "history").mkdir(parents=True)
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: true}\n")
    (tmp_path / "dagster" / "history" / "runs.db").write_bytes(b"no database at all" * 100)
    status, findings = looked(tmp_path)
    assert status == 1
    assert [finding.check for finding in findings if finding.state == "broken"] == ["dagster", "pools", "pools"]
    (damaged,) = about(findings, "dagster")
    assert "runs.db is damaged" in damaged.sentence
    assert "move it away" in damaged.advice
    assert [finding.sentence.partition(":")[0] for finding in about(findings, "pools")] == ["no_yaml", "typo"]
    assert all(str(tmp_path / "pools") in finding.advice for finding in about(findings, "pools"))
    assert about(findings, "telemetry")[0].state == "warning"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["plain", "exp [a-b] 1 é", "st*r"])
def test_dagster_is_asked_as_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """In a folder whose name is a pattern too, from a process that did not make the instance."""
    home = tmp_path / folder
    matched = ("exp a 1 é", "star")
    for name in matched:
        (tmp_path / name / "dagster").mkdir(parents=True)
        (tmp_path / name / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: true}\n")
    with prepare_instance(load_settings(home, "embedded")) as instance:
        assert not instance.telemetry_enabled
        assert type(instance.event_log_storage).__module__ == "curation_assets.foreign.dagster_event_log"
    monkeypatch.delenv("DAGSTER_HOME")
    status, findings = looked(home)
    assert (status, [finding.state for finding in about(findings, "dagster")]) == (0, ["ok"]), findings
    (finding,) = about(findings, "telemetry")
    assert finding.state == ("ok" if folder == "plain" else "warning"), finding
    assert finding.sentence.startswith("Dagster's is off")
    config = home / "dagster" / "dagster.yaml"
    config.write_text(config.read_text().replace("enabled: false", "enabled: true", 1))
    assert "leaves Dagster's on" in about(looked(home)[1], "telemetry")[0].sentence
    assert [list((tmp_path / name).rglob("*.db")) for name in matched] == [[], []]


@pytest.mark.parametrize("folder", ["what?", "back\\slash", "50%20"])
def test_a_home_where_dagster_cannot_keep_its_records_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ValueError, match="no backslash, no \\? and no % before two hex digits"):
        load_settings(tmp_path / folder, "embedded")
    status, findings = looked(tmp_path / folder)
    assert status == 1
    assert "rename the folder" in about(findings, "pools")[0].sentence
    assert not (tmp_path / folder).exists()


def test_a_check_that_breaks_or_hangs_is_a_finding() -> None:
    def breaks() -> Iterator[Finding]:
        yield Finding("breaks", "ok", "the first half")
        raise RuntimeError("torn\nin two")

    def hangs() -> Iterator[Finding]:
        time.sleep(60)
        yield Finding("hangs", "ok", "")

    def well() -> Iterator[Finding]:
        yield Finding("well", "ok", "all of it")

    findings = findings_of({"breaks": breaks, "hangs": hangs, "well": well}, seconds=0.5)
    assert [(finding.check, finding.state, finding.sentence) for finding in findings] == [
        ("breaks", "ok", "the first half"),
        ("breaks", "broken", "RuntimeError: torn"),
        ("hangs", "warning", "no answer within 0.5 s"),
        ("well", "ok", "all of it"),
    ]
    assert is_broken(findings)
    assert all(finding.advice for finding in findings if finding.state != "ok")


def test_packages_that_are_missing_or_out_of_bounds_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "no-such-package-at-all>=1",
        "polars<1",
        "numpy",
        'ruff>=99; extra == "dev"',
        "torch>=2 ; python_version<'3'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    broken = [finding.sentence for finding in doctor.packages() if finding.state == "broken"]
    polars = importlib.metadata.version("polars")
    assert broken == ["missing: no-such-package-at-all", f"out of bounds: polars {polars} (expected <1)"]


def test_little_room_is_said_before_it_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {}
    for free in (100 * doctor.GIB, doctor.GIB, 1):
        usage = type(doctor.shutil.disk_usage(tmp_path))(200 * doctor.GIB, 0, free)
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, usage=usage: usage)
        (finding,) = doctor.disks({"home": tmp_path / "not" / "yet"})
        states[free] = finding.state
    assert list(states.values()) == ["ok", "warning", "broken"]


def test_dead_runs_and_holders_are_shown_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("caption\na red kite\n")
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "mine", tmp_path / "captions.csv")
    with prepare_instance(settings) as instance:
        run = instance.create_run_for_job(
            dg.GraphDefinition(name="nothing").to_job(),
            tags={**process_tags(), PROCESS_START: "long ago"},
            status=dg.DagsterRunStatus.STARTED,
        )
        with pool_lease(settings.work("mine"), "curate run mine", on_notice=pytest.fail):
            status, findings = looked(tmp_path)
        assert status == 0, findings
        (dead,) = about(findings, "runs")
        assert dead.state == "warning"
        assert run.run_id[:8] in dead.sentence
        assert f"pid {os.getpid()}" in dead.sentence
        assert about(findings, "dagster")[0].sentence.endswith("schema current")
        assert about(findings, "slots")[0].sentence == "none is held"
        assert any("mine is held by `curate run mine`" in finding.sentence for finding in about(findings, "pools"))
        record = instance.get_run_by_id(run.run_id)
        assert record is not None
        assert record.status == dg.DagsterRunStatus.STARTED
