"""A project of Dagster's own making, with a pool as a component: docs/user/dagster_project.md, block by block."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
import yaml

from tests.support.browser import DESKTOP, open_browser
from tests.support.dagster_projects import environment_of_projects
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.infra, pytest.mark.timeout(900)]
PAGE = REPOSITORY / "docs" / "user" / "dagster_project.md"
BLOCK = re.compile(r"((?:<!-- .*? -->\n)*)```(\w+)\n(.*?)```", re.DOTALL)
#: `dg dev` serves until Ctrl+C: here, until its sensor has registered the shard.
UNTIL_REGISTERED = """
import os, signal, subprocess, time
import dagster as dg
log = open("dev.log", "w")
with dg.DagsterInstance.get() as instance:
    instance.get_runs(limit=1), instance.get_dynamic_partitions("captions")  # made before another process is there
    server = subprocess.Popen(["dg", "dev", "--port", "0"], stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(200):
            if instance.get_dynamic_partitions("captions") == ["captions-000000"] or server.poll() is not None:
                break
            time.sleep(1)
        assert instance.get_dynamic_partitions("captions") == ["captions-000000"], open("dev.log").read()
        server.send_signal(signal.SIGINT)
        server.wait(60)
    finally:
        try:
            os.killpg(server.pid, signal.SIGKILL)  # what is left of it
        except ProcessLookupError:
            pass
"""
#: `pip install --editable .` puts the project's folder src on the path: here by a variable, since these tests share an
#: environment with others. Without that line of the page nothing imports the project.
SHELL = """
set -e
pip() { test "$*" = "install --editable ."; export PYTHONPATH="$PWD/src:$PYTHONPATH"; }
dg() { if [ "$1" = dev ]; then "$PYTHON" -c "$UNTIL_REGISTERED"; else command dg "$@"; fi; }
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        **environment_of_projects(tmp_path_factory.mktemp("site")), "PYTHON": sys.executable,
        "UNTIL_REGISTERED": UNTIL_REGISTERED, "VIRTUAL_ENV": sys.prefix,
    }  # fmt: skip


def script() -> str:
    """The page as one script of bash: files are written, YAML is merged."""
    lines = [SHELL]
    for marks, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        into = re.search(r"<!-- (file|into): (\S+) -->", marks)
        if language == "bash":
            lines.append(text)
        elif into is not None and into[1] == "file":
            lines.append(f"cat > {into[2]} <<'END'\n{text}END")
        elif into is not None:  # the scaffolded file ends with the mapping that the block goes on with
            lines.append(f"cat >> {into[2]} <<'END'\n{text.removeprefix('attributes:' + chr(10))}END")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The project that a reader of the page ends with."""
    folder = tmp_path_factory.mktemp("project")
    done = subprocess.run(
        ["bash", "-c", script()], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    (folder / "printed").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder / "lake"


@contextmanager
def ui_of(project: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of Dagster's webserver over the project, without a daemon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    home = project.parent / "ui"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text("nux: {enabled: false}\ntelemetry: {enabled: false}\n")  # no welcome in front
    installed = {
        **environment, "PYTHONPATH": os.pathsep.join([str(project / "src"), environment["PYTHONPATH"]]),
        "DAGSTER_HOME": str(home),
    }  # fmt: skip
    command = ["dagster-webserver", "-m", "lake.definitions", "-p", port]
    with subprocess.Popen(command, cwd=project, env=installed) as server:
        try:
            for _ in range(240):
                with suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2).close()
                    break
                assert server.poll() is None
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def ran(project: Path, environment: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    installed = {**environment, "PYTHONPATH": os.pathsep.join([str(project / "src"), environment["PYTHONPATH"]])}
    return subprocess.run([*command], cwd=project, env=installed, capture_output=True, text=True, check=False)


def test_the_page_ends_with_captions_that_a_downstream_asset_has_read(
    project: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = yaml.safe_load((project / "src/lake/defs/captions/defs.yaml").read_text())
    assert declared["type"] == "curation_assets.CurationPool"
    assert declared["attributes"]["pool"]["source"] == "{{ context.project_root }}/captions.csv"
    kept = pl.read_parquet(project / "training_captions.parquet")
    assert kept["caption"].to_list() == ["a red dog on a wooden bench"]  # a quarter of four
    monkeypatch.setenv("DAGSTER_HOME", str(project / "dagster"))
    with dg.DagsterInstance.get() as instance:
        samples = dg.AssetKey(["curation", "captions", "raw", "samples"])
        assert instance.get_materialized_partitions(samples) == {"captions-000000"}
        event = instance.get_latest_materialization_event(dg.AssetKey(["training_captions"]))
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["dagster/row_count"].value == 1
    # `curate` on the same home and the same instance finds everything made, under the same keys
    own = {**environment, "CURATION_DAGSTER_HOME": str(project / "dagster")}
    module = [sys.executable, "-c", "from curation_assets.cli import main; main()"]
    again = ran(project, own, *module, "run", "captions", "--home", "curation", "--table", "filtered/subsets")
    assert again.returncode == 0, again.stderr
    assert "up to date" in again.stdout + again.stderr


@pytest.fixture
def two_pools(project: Path, environment: dict[str, str]) -> Iterator[Path]:
    """The project with a second pool, of drawn scenes."""
    scaffolded = ran(project, environment, "dg", "scaffold", "defs", "curation_assets.CurationPool", "others")
    assert scaffolded.returncode == 0, scaffolded.stderr
    yield project
    shutil.rmtree(project / "src/lake/defs/others")


def test_two_pools_stand_apart(two_pools: Path, environment: dict[str, str]) -> None:
    listed = json.loads(ran(two_pools, environment, "dg", "list", "defs", "--json").stdout)
    groups = {asset["group_name"] for asset in listed["assets"]}
    assert {"captions_raw", "captions_filtered", "others_raw", "others_filtered"} < groups
    pools = {tag["value"] for asset in listed["assets"] for tag in asset.get("tags", ()) if tag["key"] == "pool"}
    assert pools == {"captions", "others"}
    assert {"captions_nightly", "others_nightly"} <= {schedule["name"] for schedule in listed["schedules"]}


def test_two_pools_in_a_browser(two_pools: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """Groups of both in the lineage, one of them by its tag, and what happens to each by itself."""
    with ui_of(two_pools, environment) as url, open_browser(tmp_path / "profile") as page:
        page.open(f"{url}/asset-groups", DESKTOP)
        for group in ("captions_raw", "captions_filtered", "others_raw", "others_filtered"):
            page.shows(group)
        page.screenshot(tmp_path / "groups.png", whole=False)
        page.click("Search and filter assets")
        page.type("tag:pool=others and tag:stage=raw")
        for table in ("source", "registered_shards", "samples"):
            page.shows(table)
        page.wait_for("!document.body.innerText.includes('captions_raw')")
        page.screenshot(tmp_path / "others.png", whole=False)
        page.open(f"{url}/automation", DESKTOP)
        for pool in ("captions", "others"):
            for name in ("new_shards", "scheduled_backfill", "follows_new_shards", "nightly"):
                page.shows(f"{pool}_{name}")
        page.screenshot(tmp_path / "automation.png", whole=False)


def test_dg_lists_the_component_and_its_definitions(project: Path, environment: dict[str, str]) -> None:
    assert "curation_assets.CurationPool" in ran(project, environment, "dg", "list", "components").stdout
    listed = json.loads(ran(project, environment, "dg", "list", "defs", "--json").stdout)
    keys = {asset["asset_key"]: asset for asset in listed["assets"]}
    assert {key.rpartition("/")[0] for key in keys} >= {"curation/captions/filtered", "curation/captions/raw"}
    shown = keys["curation/captions/filtered/subsets"]
    tags = {"domain": "captions", "pool": "captions", "stage": "filtered", "grain": "pool"}
    assert (shown["group_name"], {tag["key"]: tag["value"] for tag in shown["tags"]}) == ("captions_filtered", tags)
    assert {job["name"] for job in listed["jobs"]} == {"captions_shards", "captions_summary", "captions_nightly"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("home: 3", "home"),
        ("homme: x", "homme"),
        ("pool: {name: a, kind: url_table, source: x, options: {fractoin: 0.5}}", "fractoin"),
        ("pool: {name: a, kind: url_table, source: x, shard_size: many}", "shard_size"),
        ("pool: {name: a, kind: url_table}", "source"),
        ("translation: {key: other}", "key"),
    ],
)
def test_dg_check_yaml_names_a_wrong_field(project: Path, environment: dict[str, str], wrong: str, named: str) -> None:
    file = project / "src/lake/defs/wrong/defs.yaml"
    file.parent.mkdir(exist_ok=True)
    attributes = {"home": "x", "pool": {"name": "a", "kind": "url_table", "source": "x"}, **yaml.safe_load(wrong)}
    file.write_text(yaml.safe_dump({"type": "curation_assets.CurationPool", "attributes": attributes}))
    try:
        checked = ran(project, environment, "dg", "check", "yaml", "src/lake/defs/wrong")
    finally:
        file.unlink()
        file.parent.rmdir()
    assert checked.returncode == 1
    assert named in checked.stdout + checked.stderr
