"""One shard, a range, everything: by `curate run`, `dg launch`, and the UI's own request. Same bytes, same skips."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import RANGE_END, RANGE_START, prepare_instance
from curation_assets.flow.context import PoolContext
from curation_assets.foreign.guards import GUARDS, SHARED_CODE_SERVER
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY
from tests.support.webserver import curate_ui

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
TABLES = ("raw/registered_shards", "raw/downloads", "raw/samples", "signals/icc")
SHARDS = tuple(f"photos-{number:06d}" for number in range(4))
#: One shard, a range, and all, of which three of four are there: (first, last).
STEPS = ((SHARDS[1], SHARDS[1]), (SHARDS[1], SHARDS[2]), (SHARDS[0], SHARDS[3]))
Launch = Callable[[Path, str, str], None]


def by_command(home: Path, first: str, last: str) -> None:
    tables = [word for name in TABLES for word in ("--table", name)]
    call = ["run", "photos", *tables, "--shards", f"{first}..{last}", "--home", str(home), "--profile", "embedded"]
    result = curate(*call)
    assert result.exit_code == 0, result.output


def by_dg(home: Path, first: str, last: str) -> None:
    """Dagster's command takes ranges only of tables whose backfills are one run."""
    chosen = ["--partition", first] if first == last else ["--partition-range", f"{first}...{last}"]
    selection = " or ".join(f'key:"photos/{name}"' for name in TABLES)
    environment = {
        **os.environ, "CURATION_HOME": str(home), "CURATION_PROFILE": "embedded", "PYTHONPATH": str(REPOSITORY),
        "DAGSTER_HOME": str(home / "dagster"), "CURATION_SHARDS_PER_RUN": "0",
    }  # fmt: skip
    command = [str(Path(sys.executable).parent / "dg"), "launch", "--assets", selection, *chosen]
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr


LAUNCH = """
mutation($execution: ExecutionParams!) { launchRun(executionParams: $execution) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


def ask(url: str, query: str, **variables: Any) -> Any:
    """GraphQL's answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)
    body = json.dumps({"query": query, "variables": variables})
    connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())["data"]


def ended(status: Callable[[], str]) -> str:
    """The last status, of ten minutes at most."""
    for _ in range(600):
        if status().endswith(("SUCCESS", "FAILURE", "FAILED", "CANCELED")):
            break
        time.sleep(1)
    return status()


def by_request(url: str) -> Launch:
    """As the button Materialize does it."""

    def launch(home: Path, first: str, last: str) -> None:
        tags = {"dagster/partition": first} if first == last else {RANGE_START: first, RANGE_END: last}
        launched = ask(
            url,
            LAUNCH,
            execution={
                "selector": {
                    "repositoryLocationName": "curation",
                    "repositoryName": "__repository__",
                    "jobName": "__ASSET_JOB",
                    "assetSelection": [{"path": ["photos", *name.split("/")]} for name in TABLES],
                },
                "mode": "default",
                "runConfigData": "{}",
                "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
            },
        )["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run = launched["run"]["runId"]
        assert ended(lambda: str(ask(url, STATUS, id=run)["runOrError"]["status"])) == "SUCCESS"

    return launch


BACKFILL = """
mutation($backfill: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $backfill) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }
"""
BACKFILL_STATUS = (
    "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
)


def by_backfill(url: str, partitions: Sequence[str] = SHARDS) -> Launch:
    """As the backfill of a range of partitions, which the daemon works on."""

    def launch(home: Path, first: str, last: str) -> None:
        backfill = {
            "assetSelection": [{"path": ["photos", *name.split("/")]} for name in TABLES],
            "partitionNames": [one for one in partitions if first <= one <= last],
        }
        launched = ask(url, BACKFILL, backfill=backfill)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        number = launched["backfillId"]

        def status() -> str:
            return str(ask(url, BACKFILL_STATUS, id=number)["partitionBackfillOrError"]["status"])

        assert ended(status) == "COMPLETED_SUCCESS"

    return launch


def by_process(home: Path, first: str, last: str) -> None:
    """`curate run` in a process of its own, with this environment from its beginning."""
    tables = [word for name in TABLES for word in ("--table", name)]
    call = ["run", "photos", *tables, "--shards", f"{first}..{last}", "--home", str(home), "--profile", "embedded"]
    command = [sys.executable, "-c", "from curation_assets.cli import main; main()", *call]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def stored(home: Path) -> dict[tuple[str, str], tuple[str, int]]:
    """(table, shard) → hash of its content, and when it was written."""
    store = PoolContext.open(load_settings(home, "embedded"), "photos").store
    return {
        (name, shard): (manifest.content_sha256, store.table_path(name, shard).stat().st_mtime_ns)
        for name in TABLES
        for shard in store.partitions(name)
        if (manifest := store.manifest(name, shard)) is not None
    }


def walked(home: Path, launch: Launch, steps: Sequence[tuple[str, str]] = STEPS) -> list[dict[tuple[str, str], str]]:
    """What is stored after each step; what was there before is not written again."""
    settings = load_settings(home, "embedded")
    with prepare_instance(settings) as instance:
        instance.add_dynamic_partitions("photos", list(SHARDS))
    before: dict[tuple[str, str], tuple[str, int]] = {}
    contents = []
    for first, last in steps:
        launch(home, first, last)
        now = stored(home)
        assert {key: now[key] for key in before} == before, "what is up to date is not made again"
        assert {shard for _, shard in now.keys() - before.keys()} <= {key for key in SHARDS if first <= key <= last}
        contents.append({key: content for key, (content, _) in now.items()})
        before = now
    return contents


def shards_after(steps: Sequence[dict[tuple[str, str], str]]) -> list[int]:
    return [len({shard for _, shard in contents}) for contents in steps]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], str]]:
    """What `curate run` leaves after each step."""
    steps = walked(pool_in(tmp_path_factory.mktemp("command")), by_command)
    assert shards_after(steps) == [1, 2, 4]
    return steps


def pool_in(home: Path) -> Path:
    webdataset_pool(home, shards=len(SHARDS), per_shard=4)
    return home


def test_dg_launch_makes_the_same_bytes_and_skips_the_same(
    tmp_path: Path, by_hand: list[dict[tuple[str, str], str]]
) -> None:
    assert walked(pool_in(tmp_path), by_dg) == by_hand


def test_the_ui_makes_the_same_bytes_and_skips_the_same(
    tmp_path: Path, by_hand: list[dict[tuple[str, str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURATION_PROFILE", "embedded")
    pool_in(tmp_path)
    with curate_ui(tmp_path) as url:
        assert walked(tmp_path, by_request(url)) == by_hand


def test_blocks_of_shards_make_the_same_bytes_whoever_launches_them(
    tmp_path: Path, by_hand: list[dict[tuple[str, str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block, then all: by `dg launch`; by the UI's own request, then a backfill."""
    monkeypatch.setenv("CURATION_PROFILE", "embedded")
    blocks = ("photos-000000..000001", "photos-000002..000003")
    for way in ("dg", "ui"):
        home = pool_in(tmp_path / way)
        settings = load_settings(home, "embedded")
        declared = settings.pools_root / "photos.yaml"
        declared.write_text(declared.read_text() + "  shards_per_partition: 2\n")
        with prepare_instance(settings) as instance:
            instance.add_dynamic_partitions("photos", list(blocks))
        with contextlib.ExitStack() as stack:
            url = "" if way == "dg" else stack.enter_context(curate_ui(home))
            first, then = (by_dg, by_dg) if way == "dg" else (by_request(url), by_backfill(url, blocks))
            first(home, blocks[1], blocks[1])
            assert {shard for _, shard in stored(home)} == set(SHARDS[2:]), way
            then(home, *blocks)
        with prepare_instance(settings) as instance:
            made = instance.get_materialized_partitions(dg.AssetKey(["photos", *TABLES[-1].split("/")]))
        assert made == set(blocks), way
        found = {key: content for key, (content, _) in stored(home).items() if key[0] != TABLES[0]}  # names its tar
        assert found == {key: content for key, content in by_hand[-1].items() if key[0] != TABLES[0]}, way


def test_with_the_guards_off_each_way_makes_the_same_bytes(
    tmp_path: Path, by_hand: list[dict[tuple[str, str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`curate run`, the UI's own request and a backfill, with one private part of a library (upgrading.md)."""
    others = ",".join(guard.name for guard in GUARDS if guard is not SHARED_CODE_SERVER)  # which the UI needs
    monkeypatch.setenv("CURATION_FOREIGN_OFF", others)
    monkeypatch.setenv("CURATION_PROFILE", "embedded")
    home = pool_in(tmp_path)
    with contextlib.ExitStack() as stack:

        def launches() -> Iterator[Launch]:
            yield by_process
            url = stack.enter_context(curate_ui(home))
            yield by_request(url)
            yield by_backfill(url)

        ways = launches()
        assert walked(home, lambda *step: next(ways)(*step)) == by_hand
    with prepare_instance(load_settings(home, "embedded")) as instance:
        made = instance.get_materialized_partitions(dg.AssetKey(["photos", *TABLES[0].split("/")]))
    assert made == set(SHARDS)
