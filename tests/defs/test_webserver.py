"""Who `curate ui` answers: this machine's own browser, and no page of another site."""

import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from curation_assets.core.settings import load_settings
from curation_assets.defs.webserver import guarded
from curation_assets.sources.declaration import add_pool
from tests.support.command import curate
from tests.support.lineage_pools import OPTIONS, webdataset_pool
from tests.support.webserver import curate_ui

pytestmark = pytest.mark.infra
QUERY = {"query": "{ daemonHealth: instance { daemonHealth { id allDaemonStatuses { daemonType healthy } } } }"}
LOCATIONS = {"query": "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a declared pool, in a folder whose name Dagster reads as a pattern."""
    folder = tmp_path_factory.mktemp("home") / "exp [a-b] 1 é"
    webdataset_pool(folder, shards=1, per_shard=2)
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """host:port of a real UI, with its daemon."""
    with curate_ui(home, "--allow-host", "curate.example") as url:
        yield urlsplit(url).netloc


def _request(address: str, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=120)
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, data, {"Content-Type": "application/json", **named})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_known_hosts_are_answered(address: str) -> None:
    port = address.rpartition(":")[2]
    for host in (address, f"localhost:{port}", f"curate.example:{port}", "curate.example"):
        assert _request(address, "GET", "/server_info", Host=host)[0] == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        assert _request(address, "GET", "/server_info", Host=host)[0] == 400, host
        assert _request(address, "POST", "/graphql", LOCATIONS, Host=host)[0] == 400, host


def test_pages_of_other_origins_are_refused(address: str) -> None:
    own, other = f"http://{address}", "http://evil.example"
    assert _request(address, "POST", "/graphql", LOCATIONS)[0] == 200  # no browser: curl, a script
    assert _request(address, "POST", "/graphql", LOCATIONS, Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
    for origin in (other, "null", "http://127.0.0.1:1", "https://localhost"):
        assert _request(address, "POST", "/graphql", LOCATIONS, Origin=origin)[0] == 403, origin
    query = "/graphql?query=%7Bversion%7D"  # as a picture's address: a browser sends no Origin then
    assert _request(address, "GET", query)[0] == 405
    picture = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert _request(address, "GET", query, **picture)[0] == 403
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert _request(address, "GET", "/locations", Accept="text/html", **link)[0] == 200


def test_websockets_of_other_origins_are_refused(address: str) -> None:
    def connect(origin: str, **more: str) -> str:
        with websockets.sync.client.connect(
            f"ws://{address}/graphql", origin=origin, subprotocols=["graphql-ws"], additional_headers=more
        ) as socket:
            socket.send('{"type": "connection_init"}')
            return str(json.loads(socket.recv())["type"])

    assert connect(f"http://{address}") == "connection_ack"
    with pytest.raises(InvalidStatus, match="403"):
        connect("http://evil.example")


def test_ui_and_daemon_work_behind_it(address: str) -> None:
    """The code location is loaded, and the daemon beats."""

    for _ in range(120):
        entries = json.loads(_request(address, "POST", "/graphql", LOCATIONS)[1])["data"]["workspaceOrError"]
        statuses = json.loads(_request(address, "POST", "/graphql", QUERY)[1])["data"]["daemonHealth"]
        healthy = {one["daemonType"] for one in statuses["daemonHealth"]["allDaemonStatuses"] if one["healthy"]}
        loaded = [(entry["name"], entry["loadStatus"]) for entry in entries["locationEntries"]]
        if loaded == [("curation", "LOADED")] and "SENSOR" in healthy:
            return
        time.sleep(2)
    pytest.fail(f"after four minutes: {loaded}, healthy daemons {sorted(healthy)}")


def test_a_second_one_on_the_same_home_says_so_and_leaves(
    address: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a daemon of its own, and both followed the sensors."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    run = curate("ui", "--port", "0", home=home)
    assert run.exit_code == 1, run.output
    assert re.search(r"`curate ui --port 0` \(pid \d+ .*holds the UI and the daemon of .*end it first", run.output)
    assert _request(address, "GET", "/server_info")[0] == 200


def _pools(address: str) -> set[str]:
    """Pools whose assets the UI shows."""
    query = {"query": "{ assetNodes { assetKey { path } } }"}
    nodes = json.loads(_request(address, "POST", "/graphql", query)[1])["data"]["assetNodes"]
    return {node["assetKey"]["path"][0] for node in nodes}


def _wait_for_pools(address: str, pools: set[str]) -> None:
    shown = _pools(address)
    for _ in range(300):
        if shown == pools:
            return
        time.sleep(1)
        shown = _pools(address)
    pytest.fail(f"after five minutes: the UI shows the pools {sorted(shown)}, not {sorted(pools)}")


@pytest.mark.timeout(1800)
def test_pools_that_come_and_go_are_shown_by_themselves(address: str, home: Path) -> None:
    """A declaration that cannot be read is shown as broken, and leaves the others as they are."""
    _wait_for_pools(address, {"photos"})
    settings = load_settings(home, "embedded")
    add_pool(settings, "more", home / "tars", options=OPTIONS)
    _wait_for_pools(address, {"photos", "more"})
    (settings.pools_root / "torn.yaml").write_text("name: [")
    _wait_for_pools(address, {"photos", "more", "torn"})
    (settings.pools_root / "torn.yaml").unlink()
    (settings.pools_root / "more.yaml").unlink()
    _wait_for_pools(address, {"photos"})


@pytest.mark.parametrize("name", ["evil.example:80", "http://x", "*", "", "a b"])
def test_a_host_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="takes a host name"):
        guarded(lambda *_: None, [name])  # type: ignore[arg-type]
