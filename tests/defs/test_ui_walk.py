"""A walk through Dagster's UI in a browser: groups, a shard with its plot, a failed check with its shards, a run."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.launch import RunFailedError, run_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.outputs.report.previews import BARS
from curation_assets.sources.declaration import add_pool
from tests.support.browser import DESKTOP, Page, open_browser
from tests.support.lineage_pools import OPTIONS, caption_of, jpeg, write_tar
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.slow
GOOD, BAD = "photos-000000", "photos-000001"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A pool of two shards, of which the second holds no image that can be decoded."""
    home = tmp_path_factory.mktemp("home")
    for shard in range(2):
        rows = [
            (f"{n:06d}", f"http://a.example/{n}.jpg", caption_of(n), b"no jpeg" if shard else jpeg(n))
            for n in range(shard * 6, shard * 6 + 6)
        ]
        write_tar(home / "tars" / f"{shard:06d}.tar", rows)
    settings = load_settings(home, "embedded")
    add_pool(
        settings, "photos", home / "tars", options={**OPTIONS, "owners": ["team:vision"], "min_success_rate": 0.75}
    )
    raw = ["raw/registered_shards", "raw/downloads", "raw/samples"]
    with pytest.raises(RunFailedError, match=BAD):
        run_pool(settings, "photos", tables=raw)
    run_pool(settings, "photos", tables=["signals/icc"], shards=[GOOD])
    return settings


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "CURATION_HOME": str(settings.home),
        "DAGSTER_HOME": str(settings.dagster_home),
    }
    command = [Path(sys.executable).parent / "dagster-webserver", "-w", REPOSITORY / "workspace.yaml"]
    server = subprocess.Popen([*command, "-h", "127.0.0.1", "-p", str(port)], env=environment, cwd=REPOSITORY)
    try:
        end = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, "the webserver ended"
                assert time.monotonic() < end, "the webserver did not answer within 240 s"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=120)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


def _reads_well(page: Page) -> None:
    text = page.evaluate("document.body.innerText")
    assert [wrong for wrong in ("rows rows", "[-inf, inf]", "-inf") if wrong in text] == []


def _asked(url: str, query: str) -> Any:
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=240) as answer:
        return json.load(answer)["data"]


def test_every_group_opens(url: str, page: Page, settings: Settings) -> None:
    tables = tables_of(PoolContext.open(settings, "photos"))
    for stage in dict.fromkeys(table.stage for table in tables.values()):
        page.open(f"{url}/locations/curation/asset-groups/photos_{stage}", DESKTOP)
        names = [table.name.split("/")[1] for table in tables.values() if table.stage == stage]
        page.wait_for(f"{json.dumps(names)}.some(name => document.body.innerText.includes(name))")
        _reads_well(page)


def test_a_shard_shows_its_plot_in_place(url: str, page: Page, settings: Settings) -> None:
    page.open(f"{url}/assets/photos/signals/icc?view=partitions&partition={GOOD}", DESKTOP)
    page.shows("values of icc")
    texts = "[...document.querySelectorAll('code')].map(one => one.innerText)"
    bars = page.wait_for(f"{texts}.find(text => text.includes('█'))")
    assert set(bars) <= set(BARS)
    page.shows("embedded:icc_student")  # the table of models
    page.shows(f"work/photos/signals/icc/shard={GOOD}/data.parquet")  # relative to the home
    assert str(settings.home) not in page.evaluate("document.body.innerText")
    _reads_well(page)


def test_a_table_shows_its_columns_owner_and_paper(url: str, page: Page) -> None:
    page.open(f"{url}/assets/photos/signals/icc?view=overview", DESKTOP)
    for text in ("vision", "Why there is no value", "photos.signals_icc"):
        page.shows(text)
    assert page.evaluate("!!document.querySelector('a[href=\"https://arxiv.org/abs/2403.01306\"]')")


def test_tables_have_column_lineage_and_signals_their_paper(url: str) -> None:
    query = """{ assetNodes { assetKey { path } description metadataEntries {
      __typename ... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps { columnName } } } } } }"""
    nodes = {"/".join(node["assetKey"]["path"][1:]): node for node in _asked(url, query)["assetNodes"]}
    lineage = [entry["lineage"] for entry in nodes["filtered/icc"]["metadataEntries"] if "lineage" in entry]
    assert {"verdict", "threshold", "value"} <= {column["columnName"] for column in lineage[0]}
    for name in ("signals/icc", "signals/clip_score", "signals/sieve"):
        assert "](https://" in nodes[name]["description"], name
    assert not any("-inf" in (node["description"] or "") for node in nodes.values())


def test_what_happens_by_itself_is_listed(url: str, page: Page) -> None:
    page.open(f"{url}/automation", DESKTOP)
    for name in ("nightly", "photos_new_shards", "photos_follows_new_shards", "scheduled_backfill", "dead_runs"):
        page.shows(name)


def test_a_failed_check_names_its_shards(url: str, page: Page) -> None:
    page.open(f"{url}/assets/photos/raw/samples?view=checks&checkDetail=enough_succeeded", DESKTOP)
    page.shows(f"1 of 2 fail: {BAD}")
    assert GOOD not in page.evaluate("document.body.innerText")


def test_a_run_has_a_name_and_tags(url: str, page: Page) -> None:
    page.open(f"{url}/runs", DESKTOP)
    page.shows("photos_shards")
    assert "__ephemeral" not in page.evaluate("document.body.innerText")
