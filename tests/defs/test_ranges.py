"""Shards in ranges: several commands at once, then what reads the whole pool; the same bytes as one command for all."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import run_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.stores.lease import pool_lease
from tests.support.command import curate as in_process
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY

PROFILE = ("--profile", "embedded")
TABLES = ("registered_shards", "downloads", "samples", "lookup")
UP_TO_LOOKUP = [word for name in TABLES for word in ("--table", f"raw/{name}")]


def contents(home: Path) -> dict[str, str]:
    """'table of shard' → hash of its content, of everything that is stored, less what names runs and times."""
    ctx = PoolContext.open(load_settings(home, "embedded"), "photos")
    stored = {}
    for table in tables_of(ctx).values():
        for part in table.partitions(ctx.shards()):
            manifest = ctx.store.manifest(table.name, part)
            if manifest is not None and table.name != "downstream/report":
                stored[f"{table.name} {part or ''}"] = manifest.content_sha256
    return stored


def curate(home: Path, *arguments: str) -> dict[str, Any]:
    result = in_process("run", "photos", *arguments, "--json", "--home", home, *PROFILE)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def begun(home: Path, *arguments: str, name: str = "run") -> "subprocess.Popen[str]":
    call = [sys.executable, "-c", "from curation_assets.cli import main; main()", name, "photos", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([*call, "--home", str(home), *PROFILE], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything made by one command."""
    home = tmp_path_factory.mktemp("whole")
    settings = webdataset_pool(home, shards=5, per_shard=4)
    run_pool(settings, "photos")
    return contents(home)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_phases_alternate_to_the_end_and_give_the_same_bytes(tmp_path: Path, whole: dict[str, str]) -> None:
    webdataset_pool(tmp_path, shards=5, per_shard=4)
    first = curate(tmp_path, "--phase", "pool")
    assert (first["next"], first["tables"]) == ("shards", [])
    answers = []
    phase: str | None = "shards"
    while phase is not None and len(answers) < 10:
        ranges = ["0..2", "3..4"] if phase == "shards" else [None]
        for chosen in ranges:
            answer = curate(tmp_path, *(["--phase", phase] if chosen is None else ["--shards", chosen]))
        answers.append((phase, {table["table"] for table in answer["tables"] if table["computed"]}))
        phase = answer["next"]
    assert [made for made, _ in answers] == ["shards", "pool"] * 3
    assert contents(tmp_path) == whole
    cuts = next(number for number, (_, made) in enumerate(answers) if "filtered/icc_cut" in made)
    assert "signals/icc" in answers[cuts - 1][1]
    assert all(table["computed"] == 0 for table in curate(tmp_path)["tables"])


@pytest.mark.slow
def test_a_cut_is_never_fitted_on_a_part_of_the_pool(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=3, per_shard=4)
    curate(tmp_path, "--shards", "0..1")
    answer = curate(tmp_path, "--phase", "pool")
    assert (answer["next"], answer["tables"]) == ("shards", [])
    store = PoolContext.open(settings, "photos").store
    assert store.manifest("filtered/icc_cut") is None
    assert store.partitions("signals/icc") == ["photos-000000", "photos-000001"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_commands_of_two_ranges_run_at_once_from_an_empty_home(tmp_path: Path, whole: dict[str, str]) -> None:
    """They overlap in one shard; neither waits for the other."""
    settings = webdataset_pool(tmp_path, shards=5, per_shard=4)
    with pool_lease(settings.work("photos"), "another range", on_notice=print, shared=True):
        commands = [begun(tmp_path, "--shards", chosen) for chosen in ("0..2", "photos-000002..photos-000004")]
        said = [command.communicate(timeout=400)[1] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    assert not any("waits for" in text for text in said), said
    curate(tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.infra
def test_what_reads_the_whole_pool_waits_for_ranges_and_names_one(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=2, per_shard=4)
    with pool_lease(settings.work("photos"), "curate run photos --shards 0..1", on_notice=print, shared=True):
        for arguments in (["run"], ["run", "--phase", "pool"], ["refit"]):
            command = begun(tmp_path, *arguments[1:], "--no-wait", name=arguments[0])
            _, said = command.communicate(timeout=400)
            assert command.returncode == 1
            assert "`curate run photos --shards 0..1` (pid" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shards", "7"], "the pool has none of them; it has photos-000000, photos-000001"),
        (["--shards", "1..x"], "shards take a key (photos-000003)"),
        (["--shards", "0", "--phase", "pool"], "phase 'pool' makes tables of the whole pool"),
        (["--shards", "0", *UP_TO_LOOKUP], "raw/lookup cannot be made of some shards alone"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    webdataset_pool(tmp_path, shards=2, per_shard=2)
    result = in_process("run", "photos", *arguments, home=tmp_path)
    assert result.exit_code == 1
    assert sentence in result.stderr
