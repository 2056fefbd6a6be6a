"""`curate ui` over a finished pool, asked by GraphQL and, where chromium is there, by a browser."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation_assets.flow.graph import tables_of
from tests.conftest import FinishedPool
from tests.support.webserver import curate_ui

pytestmark = pytest.mark.infra


@pytest.fixture(scope="module")
def webserver(finished_pool: FinishedPool) -> Iterator[str]:
    with curate_ui(finished_pool.settings.home) as url:
        yield url


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
    assert set(shown) == {*declared, "source", "releases", "releases/summary"}
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
