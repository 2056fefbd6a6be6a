"""Rating on a local page: one small server on 127.0.0.1, several raters, nothing loaded from elsewhere."""

import html
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from curation_assets.annotation import QUESTION, SCALE
from curation_assets.annotation.ratings_log import RatingsLog, check_rater
from curation_assets.annotation.session import LabellingSession
from curation_assets.core.own_pages import ANSWER_HEADERS, Kind, refusal

HOST = "127.0.0.1"
MAX_BODY_BYTES = 4096  # a rating is about a hundred


class LocalPageServer(ThreadingHTTPServer, ABC):
    """A page for this machine only. What it shows and does is a subclass's: `page`, `state`, `act`, `picture`."""

    daemon_threads = True

    def __init__(self, port: int, rater: str | None = None) -> None:
        """Bind 127.0.0.1:`port` (0: any free one). `rater`: who starts at once; None: the page requests a name.

        Raises OSError where the port is taken, ValueError for a bad name.
        """
        self.rater = "" if rater is None else check_rater(rater)
        super().__init__((HOST, port), _Handler)
        self.nonce = secrets.token_urlsafe(16)
        self.lock = Lock()

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    @abstractmethod
    def page(self) -> str:
        """The page's HTML; its scripts and styles carry `self.nonce`."""

    @abstractmethod
    def state(self, rater: str) -> dict[str, Any]:
        """What the page shows a rater now. Raises ValueError for a bad name."""

    @abstractmethod
    def act(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Do what was posted to `path` and return the new state. Raises ValueError for what cannot be done."""

    def with_rater(self, page: str) -> str:
        """A page with its RATER filled in; a name that is given is not requested again."""
        return page.replace("RATER", html.escape(self.rater))

    def picture(self, name: str) -> bytes | None:
        """A JPEG that the page may show, None for an unknown name."""
        return None


class LabellingServer(LocalPageServer):
    """Serves the rating page and keeps one session per rater."""

    def __init__(
        self,
        captions: Sequence[str],
        log: RatingsLog,
        *,
        port: int = 0,
        in_order: bool = False,
        rater: str | None = None,
    ) -> None:
        """Raises OSError where the port is taken, ValueError for a bad `rater`."""
        super().__init__(port, rater)
        self.captions = list(captions)
        self.log = log
        self.in_order = in_order
        self._sessions: dict[str, LabellingSession] = {}

    def page(self) -> str:
        """A caption, four buttons."""
        return self.with_rater(_page(self.nonce))

    def state(self, rater: str) -> dict[str, Any]:
        """caption (None when all are done), done, total."""
        session = self.session(rater)
        return {"caption": session.current, "done": session.done_count, "total": session.total}

    def act(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """/rate: {"rater", "caption", "rating": 0–3 or null}; /back: {"rater"}."""
        rater = str(content.get("rater", ""))
        session = self.session(rater)
        if path == "/rate":
            if content.get("caption") == session.current:  # a second click on an answered caption changes nothing
                rating = content.get("rating")
                session.rate(None if rating is None else int(rating))
        elif path == "/back":
            session.go_back()
        else:
            raise ValueError(f"no action {path!r}")
        return self.state(rater)

    def session(self, rater: str) -> LabellingSession:
        """The rater's session, from the log when first requested. Raises ValueError for a bad name."""
        if rater not in self._sessions:
            self._sessions[rater] = LabellingSession(self.captions, rater, self.log, in_order=self.in_order)
        return self._sessions[rater]


class _Handler(BaseHTTPRequestHandler):
    server: LocalPageServer
    server_version = "curate-label"

    def do_GET(self) -> None:
        """The page, /state?rater=NAME, or /picture?name=NAME."""
        address = urlsplit(self.path)
        if self._is_refused("page" if address.path == "/" else "file"):
            return
        if address.path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.page().encode())
        elif address.path == "/state":
            self._answer(lambda: self.server.state(_given(address.query, "rater")))
        elif address.path == "/picture" and (picture := self.server.picture(_given(address.query, "name"))) is not None:
            self._send(200, "image/jpeg", picture)
        else:
            self._send(404, "text/plain", b"not found")

    def do_POST(self) -> None:
        """What the server can `act` on, as a small JSON body; the answer is the new state."""
        if self._is_refused("action"):
            return
        length = self.headers.get("Content-Length") or ""
        size = int(length) if length.isdecimal() else 0
        if not 0 < size <= MAX_BODY_BYTES:
            self._send(415, "text/plain", b"expected a small JSON body")
            return
        body = self.rfile.read(size)
        self._answer(lambda: self.server.act(urlsplit(self.path).path, json.loads(body)))

    def _answer(self, act: Any) -> None:
        try:
            with self.server.lock:
                content = act()
        except (ValueError, AttributeError, TypeError) as error:
            self._send(400, "application/json", json.dumps({"error": str(error)}).encode())
            return
        self._send(200, "application/json", json.dumps(content, ensure_ascii=False).encode())

    def _is_refused(self, kind: Kind) -> bool:
        refused = refusal(self.command, self.headers, kind)
        if refused is not None:
            self._send(refused[0], "text/plain; charset=utf-8", refused[1].encode())
        return refused is not None

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header(
            "Content-Security-Policy",
            f"default-src 'none'; connect-src 'self'; img-src 'self'; script-src 'nonce-{self.server.nonce}'; "
            f"style-src 'nonce-{self.server.nonce}'",
        )
        for name, value in ANSWER_HEADERS:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the page shows what happens."""


def _given(query: str, name: str) -> str:
    return (parse_qs(query).get(name) or [""])[0]


def _page(nonce: str) -> str:
    buttons = "".join(
        f'<button data-rating="{rating}"><b>{rating}</b> {html.escape(meaning)}</button>'
        for rating, meaning in SCALE.items()
    )
    page = _PAGE.replace("ASK", ASK).replace("NONCE", nonce).replace("QUESTION", html.escape(QUESTION))
    return page.replace("BUTTONS", buttons)


#: JavaScript of a page with its own `at`, `show` and `busy`: ask the server, show the state that it answers.
ASK = """async function ask(path, content) {
  if (busy) return; busy = true;
  try {
    const options = content && { method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify(content) };
    show(await (await fetch(path, options || {})).json());
  } catch (error) { at("status").textContent = "The server does not answer; nothing is lost, start it again."; }
  busy = false;
}"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rate captions</title>
<style nonce="NONCE">
body { font: 17px/1.5 system-ui, sans-serif; max-width: 760px; margin: 40px auto; padding: 0 16px; color: #1f2933; }
#caption { font-size: 25px; border: 1px solid #d5dae0; border-radius: 8px; padding: 24px; margin: 16px 0; }
button { display: block; width: 100%; text-align: left; font: inherit; padding: 8px 14px; margin: 6px 0;
  cursor: pointer; border: 1px solid #d5dae0; border-radius: 6px; background: #f5f7fa; }
button:focus-visible, button:hover { border-color: #2f6fde; } #progress, #status { color: #616e7c; }
.row { display: flex; gap: 8px; } input { font: inherit; padding: 6px; }
</style></head><body>
<form id="who"><label>Your name <input id="rater" value="RATER" maxlength="60" required autocomplete="off"></label>
<input type="submit" value="Start"></form>
<main id="work" hidden><h1>QUESTION</h1><p id="progress" aria-live="polite"></p><div id="caption"></div>
BUTTONS<div class="row"><button id="skip">s – cannot say</button><button id="back">b – back</button></div></main>
<p id="status" role="status"></p>
<script nonce="NONCE">
const at = id => document.getElementById(id);
let rater = "", caption = null, busy = false;
function show(state) {
  if (state.error) { at("status").textContent = state.error; return; }
  at("status").textContent = ""; caption = state.caption;
  at("who").hidden = true; at("work").hidden = false;
  at("progress").textContent = `${state.done} of ${state.total} done by ${rater}`;
  at("caption").textContent = caption === null ? "All done. Thank you. You may close this page." : caption;
}
ASK
const rate = rating => { if (caption !== null) ask("/rate", { rater, caption, rating }); };
const back = () => ask("/back", { rater });
at("who").onsubmit = event => { event.preventDefault(); rater = at("rater").value.trim();
  ask("/state?rater=" + encodeURIComponent(rater)); };
if (at("rater").defaultValue) at("who").requestSubmit();
document.querySelectorAll("[data-rating]").forEach(b => b.onclick = () => rate(Number(b.dataset.rating)));
at("skip").onclick = () => rate(null); at("back").onclick = back;
document.onkeydown = event => {
  if (at("work").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  if ("0123".includes(event.key)) rate(Number(event.key));
  else if (event.key === "s") rate(null); else if (event.key === "b") back();
};
</script></body></html>
"""
