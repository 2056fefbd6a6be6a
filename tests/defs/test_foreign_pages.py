"""A page of another site, in real browsers, against Dagster's UI and a rating page: nothing that it tries is done.

Each attack writes under its own name: an asset's materialisation in Dagster, a rating by that rater.
"""

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import uvicorn
from dagster import AssetKey, DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from curation_assets.annotation.ratings_log import RatingsLog, read_ratings
from curation_assets.annotation.session import LabellingSession
from curation_assets.annotation.web import LabellingServer
from curation_assets.defs.webserver import guarded
from tests.support.browser import Page, open_browser
from tests.support.firefox import FirefoxPage, open_firefox

REBOUND = "rebound.example"  # in these browsers a name of 127.0.0.1
OWN = "127.0.0.1:3000"


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterInstance]:
    with DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


@pytest.fixture(scope="module")
def application(instance: DagsterInstance) -> Iterator[Starlette]:
    """Dagster's own, without a code location."""
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context:
        yield create_app_from_workspace_process_context(context)


@contextmanager
def _serving(app: object) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _mutation(name: str) -> str:
    return (
        "mutation { reportRunlessAssetEvents(eventParams: {eventType: ASSET_MATERIALIZATION, assetKey: {path: "
        f'["attack", "{name}"]}}}}) {{ __typename }} }}'
    )


def _attacks(address: str, rating_page: str) -> str:
    """A page that tries every way a browser offers to send a request to `address` (Dagster) and to the rating page."""
    return f"""<!doctype html><meta charset="utf-8"><title>working</title><body><script>
const mutation = name => {json.dumps(_mutation("NAME"))}.replace("NAME", name);
const get = name => "http://{address}/graphql?query=" + encodeURIComponent(mutation(name));
const add = (tag, values, inside) => {{
  const one = Object.assign(document.createElement(tag), values); (inside || document.body).append(one); return one; }};
const hidden = name => add("iframe", {{ name }});
add("object", {{ data: get("object") }}); add("embed", {{ src: get("embed") }}); add("img", {{ src: get("img") }});
add("script", {{ src: get("script") }}); add("iframe", {{ src: get("iframe") }});
add("video", {{ src: get("video") }}); add("audio", {{ src: get("audio") }});
add("track", {{ src: get("track"), default: true }}, add("video", {{ crossOrigin: "use-credentials" }}));
add("input", {{ type: "image", src: get("input") }});
for (const rel of ["prefetch", "stylesheet", "preload", "modulepreload", "icon", "manifest", "prerender"])
  add("link", {{ rel, href: get("link_" + rel), as: rel === "preload" ? "fetch" : "" }}, document.head);
add("style", {{ textContent: `body {{ background: url("${{get("css")}}") }}
  @font-face {{ font-family: x; src: url("${{get("font")}}") }} body {{ font-family: x }}` }});
add("p", {{ textContent: "words" }});
const form = (name, method, enctype, action, fields) => {{
  hidden(name); const one = add("form", {{ method, enctype, action, target: name }});
  for (const [key, value] of Object.entries(fields)) add("input", {{ name: key, value }}, one);
  one.submit(); }};
form("form_get", "get", "application/x-www-form-urlencoded", "http://{address}/graphql",
     {{ query: mutation("form_get") }});
for (const [name, enctype] of [["urlencoded", "application/x-www-form-urlencoded"], ["plain", "text/plain"],
                               ["multipart", "multipart/form-data"]]) {{
  form("form_" + name, "post", enctype, get("form_" + name), {{ a: 1 }});
  form("form_report_" + name, "post", enctype, "http://{address}/report_asset_materialization/attack/report_" + name,
       {{}});
}}
form("form_json", "post", "text/plain", "http://{address}/graphql",
     {{ [`{{"query": ${{JSON.stringify(mutation("form_json"))}}, "a": "`]: `"}}` }});
const rating = name => JSON.stringify({{ rater: name, caption: "a dog", rating: 3, padding: "=" }});
form("form_rating", "post", "text/plain", "http://{rating_page}/rate",
     {{ [rating("form_rating").slice(0, -3)]: `"}}` }});
const quietly = one => Promise.resolve(one).catch(() => 0), sent = [];
for (const type of ["text/plain", "text/plain; application/json", "application/json", "application/graphql"]) {{
  const name = "fetch_" + type.replace(/[^a-z]/g, "_"), headers = {{ "Content-Type": type }};
  for (const mode of ["no-cors", "cors"]) {{
    const one = name + "_" + mode.replace("-", "_");
    const options = {{ method: "POST", mode, headers, credentials: "include" }};
    const query = type.includes("graphql") ? mutation(one) : JSON.stringify({{ query: mutation(one) }});
    sent.push(quietly(fetch("http://{address}/graphql", {{ ...options, body: query }})));
    sent.push(quietly(fetch(get(one + "_url"), options)));
    sent.push(quietly(fetch("http://{address}/report_asset_materialization/attack/report_" + one, options)));
    sent.push(quietly(fetch("http://{rating_page}/rate", {{ ...options, body: rating(one) }})));
  }}
}}
for (const mode of ["no-cors", "cors"]) for (const referrerPolicy of ["no-referrer", "unsafe-url"])
  sent.push(quietly(fetch(get("fetch_get_" + mode.replace("-", "_")), {{ mode, referrerPolicy }})));
navigator.sendBeacon(get("beacon"), "x");
navigator.sendBeacon("http://{rating_page}/rate", new Blob([rating("beacon")], {{ type: "text/plain" }}));
try {{ new EventSource(get("events")); }} catch (e) {{}}
sent.push(new Promise(done => {{
  const socket = new WebSocket("ws://{address}/graphql", "graphql-ws");
  socket.onerror = socket.onclose = () => done();
  socket.onopen = () => {{
    socket.send(`{{"type": "connection_init"}}`);
    for (const word of ["mutation", "subscription"]) socket.send(JSON.stringify({{ type: "start", id: word,
      payload: {{ query: mutation("websocket").replace("mutation", word) }} }}));
    setTimeout(done, 3000); }};
}}));
window.open(get("window_open")); window.open(get("window_noopener"), "_blank", "noopener");
add("a", {{ href: get("link_click"), target: "clicked" }}).click(); hidden("clicked");
add("a", {{ ping: get("ping"), href: "about:blank", target: "pinged" }}).click(); hidden("pinged");
const settled = document.readyState === "complete" ? 0 : new Promise(done => window.addEventListener("load", done));
Promise.race([Promise.all([settled, ...sent]), new Promise(done => setTimeout(done, 20000))]).then(() =>
  setTimeout(() => {{ document.title = "all sent"; }}, 2000));
</script>"""


class _Evil(BaseHTTPRequestHandler):
    pages: dict[str, str]

    def do_GET(self) -> None:
        """A page, or a way round through a redirect."""
        address = urllib.parse.urlsplit(self.path)
        self.send_response(302 if address.path == "/redirect" else 200)
        if address.path == "/redirect":
            self.send_header("Location", address.query)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.pages.get(address.path, "").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(params=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page | FirefoxPage]:
    with ExitStack() as stack:
        if request.param == "chromium":
            flags = [f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1", "--disable-popup-blocking"]
            yield stack.enter_context(open_browser(tmp_path / "profile", *flags))
        else:
            yield stack.enter_context(open_firefox(tmp_path / "profile", local_names=[REBOUND]))


def _post(name: str) -> str:
    """JavaScript: how a page of ours requests the mutation."""
    body = json.dumps(json.dumps({"query": _mutation(name)}))
    return f"{{ method: 'POST', headers: {{ 'Content-Type': 'application/json' }}, body: {body} }}"


def _done(instance: DagsterInstance) -> set[str]:
    """The attacks that wrote something."""
    return {key.path[-1] for key in instance.all_asset_keys()}


def _go(browser: Page | FirefoxPage, url: str) -> None:
    if isinstance(browser, Page):
        browser.send("Page.navigate", url=url)
    else:
        browser.open(url)


@pytest.mark.infra
def test_nothing_that_a_page_of_another_site_tries_is_done(
    browser: Page | FirefoxPage, application: Starlette, instance: DagsterInstance, tmp_path: Path
) -> None:
    log = RatingsLog(tmp_path / "ratings.tsv")
    with ExitStack() as stack:
        address = stack.enter_context(_serving(guarded(application)))
        port = address.rpartition(":")[2]
        labels = stack.enter_context(LabellingServer("rating", partial(LabellingSession, ["a dog"], log=log)))
        threading.Thread(target=labels.serve_forever, daemon=True).start()
        stack.callback(labels.shutdown)
        evil = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Evil))
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        stack.callback(evil.shutdown)
        _Evil.pages = {
            "/": _attacks(address, f"127.0.0.1:{labels.server_port}"),
            "/rebound": _attacks(f"{REBOUND}:{port}", f"{REBOUND}:{labels.server_port}"),
        }
        foreign = f"http://localhost:{evil.server_port}"  # another site than 127.0.0.1
        for page in (f"{foreign}/", f"{foreign}/rebound", f"http://127.0.0.1:{evil.server_port}/"):
            _go(browser, page)
            browser.wait_for("document.title === 'all sent'")
        query = "/graphql?" + urllib.parse.urlencode({"query": _mutation("navigation")})
        for url in (f"http://{address}{query}", f"{foreign}/redirect?http://{address}{query}"):
            _go(browser, url)
            browser.wait_for("document.body && document.body.innerText.includes('nothing is done by GET')")

        # a page under the name that was pointed at this machine is of one origin with the server, and gets nothing
        _go(browser, f"http://{REBOUND}:{port}/")
        browser.wait_for(f"document.body && document.body.innerText.includes('{REBOUND}')")
        assert browser.evaluate(f"fetch('/graphql', {_post('rebound')}).then(answer => answer.status)") == 400
        assert _done(instance) == set()
        assert read_ratings([log.path]).table.height == 0

        # the UI's own page works here, and may do what the others tried
        _go(browser, f"http://{address}/runs")
        browser.wait_for("document.body && document.body.innerText.includes('Runs')")
        assert browser.evaluate(f"fetch('/graphql', {_post('own')}).then(answer => answer.status)") == 200
        assert _done(instance) == {"own"}
        instance.wipe_assets([AssetKey(["attack", "own"])])
        _go(browser, labels.url)
        browser.wait_for("document.querySelector('#who') !== null")


# Every route of Dagster's webserver: an example of it, and what it is. One that a new version adds must be judged here.
ROUTES = {
    "/server_info": ("/server_info", "file"),
    "/dagit_info": ("/dagit_info", "file"),
    "/graphql": ("/graphql?query=%7Bversion%7D", "action"),
    "/logs/{path:path}": ("/logs/run/compute.out", "file"),
    "/notebook": ("/notebook?path=a.ipynb&repoLocName=x", "file"),
    "/dagit/notebook": ("/dagit/notebook?path=a.ipynb&repoLocName=x", "file"),
    "/download_debug/{run_id:str}": ("/download_debug/x", "file"),
    "/report_asset_materialization/{asset_key:path}": ("/report_asset_materialization/attack/route", "action"),
    "/report_asset_check/{asset_key:path}": ("/report_asset_check/attack/route?check_name=x&passed=true", "action"),
    "/report_asset_observation/{asset_key:path}": ("/report_asset_observation/attack/route", "action"),
    "/{path:path}": ("/runs", "page"),
    "/": ("/", "page"),
}
FOREIGN = {
    "fetch": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"},
    "cors": {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty"},
    "null": {"Origin": "null"},
    "other_port": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    **{
        kind: {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": kind, "Accept": "*/*"}
        for kind in ("object", "embed", "iframe", "frame", "image", "script", "style", "video", "empty")
    },
    "old_browser": {"Origin": "http://evil.example", "Referer": "http://evil.example/page"},
}
LINKS = {
    "link": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    "old_browser": {"Referer": "http://evil.example/page", "Accept": "text/html"},
}
OURS = {
    "program": {},
    "page": {"Origin": f"http://{OWN}", "Sec-Fetch-Site": "same-origin"},
    "typed": {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    "old_browser": {"Referer": f"http://{OWN}/runs"},
}
JSON = {"Content-Type": "application/json"}
FORMS = ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "application/graphql", None]


@pytest.fixture(scope="module")
def client(application: Starlette) -> TestClient:
    return TestClient(guarded(application), base_url=f"http://{OWN}", raise_server_exceptions=False)


def test_every_route_of_dagster_is_judged(application: Starlette) -> None:
    static = {"root_static", "vendor_static", "_next_static"}
    found = {route.path for route in application.routes if getattr(route, "name", None) not in static}  # type: ignore[attr-defined]
    assert found == set(ROUTES)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "kind"), ROUTES.values(), ids=ROUTES)
def test_no_route_answers_another_site(client: TestClient, instance: DagsterInstance, path: str, kind: str) -> None:
    for name, headers in FOREIGN.items():
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            assert client.request(method, path, headers={**headers, **JSON}).status_code == 403, (name, method)
    for name, headers in LINKS.items():
        assert client.get(path, headers=headers).status_code == (200 if kind == "page" else 403), name
        assert client.post(path, headers={**headers, **JSON}).status_code == 403, name
    for name, headers in OURS.items():
        answer = client.get(path, headers=headers)
        assert (answer.status_code == 405) == (kind == "action"), name
        assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert "frame-ancestors 'self'" in answer.headers.get_list("Content-Security-Policy", split_commas=True)[-1]
        if kind == "action":
            for form in FORMS:
                typed = {} if form is None else {"Content-Type": form}
                assert client.post(path, headers={**headers, **typed}).status_code == 415, (name, form)
    for host in ("evil.example", "evil.example:3000", "127.0.0.1.evil.example", "localhost.", "[::1]:3000", "", "["):
        assert client.post(path, headers={**JSON, "Host": host}, json={}).status_code == 400, host
        assert client.get(path, headers={"Host": host}).status_code == 400, host
    assert _done(instance) == set()


def test_static_files_are_for_own_pages(client: TestClient) -> None:
    for path in ("/favicon.png", "/robots.txt", "/csp-header.txt"):
        assert client.get(path).status_code == 200
        assert client.get(path, headers=FOREIGN["image"]).status_code == 403


def test_own_pages_and_programs_post_json(client: TestClient, instance: DagsterInstance) -> None:
    for name, headers in OURS.items():
        answer = client.post("/graphql", json={"query": _mutation(name)}, headers={**headers})
        assert answer.status_code == 200
        answer = client.post(f"/report_asset_materialization/attack/{name}_report", json={}, headers=headers)
        assert answer.status_code == 200
    assert _done(instance) == {f"{name}{end}" for name in OURS for end in ("", "_report")}
    instance.wipe_assets(list(instance.all_asset_keys()))


@pytest.mark.parametrize("headers", [*FOREIGN.values(), *LINKS.values()])
def test_a_websocket_of_another_site_is_closed(client: TestClient, headers: dict[str, str]) -> None:
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect(f"ws://{OWN}/graphql", ["graphql-ws"], headers=headers),
    ):
        pass


@pytest.mark.parametrize("headers", OURS.values(), ids=OURS)
def test_an_own_websocket_is_answered(client: TestClient, headers: dict[str, str]) -> None:
    with client.websocket_connect(f"ws://{OWN}/graphql", ["graphql-ws"], headers=headers) as socket:
        socket.send_json({"type": "connection_init"})
        assert socket.receive_json() == {"type": "connection_ack"}
