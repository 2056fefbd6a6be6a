"""The real Dagster webserver over a finished pool, asked by GraphQL and, where chromium is there, by a browser."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation_assets.defs.launch import prepare_instance
from curation_assets.flow.graph import tables_of
from tests.conftest import FinishedPool
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def webserver(finished_pool: FinishedPool) -> Iterator[str]:
    prepare_instance(finished_pool.settings)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "CURATION_HOME": str(finished_pool.settings.home),
        "DAGSTER_HOME": str(finished_pool.settings.dagster_home),
    }
    command = [Path(sys.executable).parent / "dagster-webserver", "-w", REPOSITORY / "workspace.yaml"]
    server = subprocess.Popen([*command, "-h", "127.0.0.1", "-p", str(port)], env=environment, cwd=REPOSITORY)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{url}/server_info", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, "the webserver ended"
                assert time.monotonic() < end, "the webserver did not answer within 90 s"
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def _ask(url: str, query: str) -> dict:  # type: ignore[type-arg]
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["data"]


def test_webserver_shows_every_asset_with_its_partitions(webserver: str, finished_pool: FinishedPool) -> None:
    nodes = _ask(
        webserver,
        "{ assetNodes { assetKey { path } groupName isPartitioned partitionStats { numMaterialized numPartitions } } }",
    )["assetNodes"]
    shown = {"/".join(node["assetKey"]["path"][1:]): node for node in nodes if node["assetKey"]["path"][0] == "tiny"}
    declared = tables_of(finished_pool.ctx)
    assert set(shown) == set(declared)
    for name, table in declared.items():
        assert shown[name]["isPartitioned"] == (table.grain != "pool")
        if table.grain != "pool":
            count = len(table.partitions(finished_pool.ctx.shards()))
            assert shown[name]["partitionStats"] == {"numMaterialized": count, "numPartitions": count}


def test_browser_draws_the_graph(webserver: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    drawn = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path}", "--window-size=1600,1000", "--virtual-time-budget=20000", "--dump-dom",
            f"{webserver}/asset-groups",
        ],
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    for stage in ("raw", "signals", "filtered"):
        assert stage in drawn.stdout
