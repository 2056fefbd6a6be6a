"""Rating and ranking on a local page: one small server on 127.0.0.1, several raters, nothing loaded from elsewhere."""

import io
import json
import secrets
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from curation_assets.annotation import QUESTION, SCALE
from curation_assets.annotation.ranking import CRITERIA
from curation_assets.annotation.ratings_log import check_rater
from curation_assets.annotation.session import Session
from curation_assets.core.own_pages import ANSWER_HEADERS, HOST, Kind, refusal
from curation_assets.stores.rankings import load_ranked_image

MAX_BODY_BYTES = 4096  # a rating is about a hundred
LONGER_SIDE_PX = 900  # of a picture that is shown


def picture_of(source: Path, images: Collection[str], name: str) -> bytes | None:
    """JPEG of one of `images`, named as `rankings.load_ranked_image` reads them from `source`; None for any other name,
    and where it cannot be read."""
    if name not in images:
        return None
    try:
        image = load_ranked_image(source, name).convert("RGB")
    except (ValueError, OSError):
        return None
    image.thumbnail((LONGER_SIDE_PX, LONGER_SIDE_PX))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class LabellingServer(ThreadingHTTPServer):
    """Serves the page of one kind and keeps a session per rater, for this machine only."""

    daemon_threads = True

    def __init__(
        self,
        kind: Literal["rating", "ranking", "judging"],
        open_session: Callable[[str], Session],
        *,
        port: int = 0,
        rater: str | None = None,
        picture: Callable[[str], bytes | None] = lambda name: None,
    ) -> None:
        """Bind 127.0.0.1:`port` (0: any free one).

        `open_session`: the session of a rater, from the log, when first requested. `rater`: who starts at once; None:
        the page requests a name. `picture`: a JPEG that the page may show, None for an unknown name.
        Raises OSError where the port is taken, ValueError for a bad name.
        """
        self.rater = "" if rater is None else check_rater(rater)
        super().__init__((HOST, port), _Handler)
        self.kind = kind
        self.picture = picture
        self.nonce = secrets.token_urlsafe(16)
        self.lock = Lock()
        self._open_session = open_session
        self._sessions: dict[str, Session] = {}

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def page(self) -> str:
        """The page's HTML; a name that is given is not requested again."""
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template(f"{self.kind}.html.jinja").render(
            nonce=self.nonce, rater=self.rater, question=QUESTION, scale=SCALE, criteria=CRITERIA
        )

    def session(self, rater: str) -> Session:
        """The rater's session. Raises ValueError for a bad name."""
        if rater not in self._sessions:
            self._sessions[rater] = self._open_session(rater)
        return self._sessions[rater]

    def act(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Do what was posted to `path` (`Session.act`) for `content`'s rater and return the new state.

        Raises ValueError for what cannot be done.
        """
        session = self.session(str(content.get("rater", "")))
        session.act(path.removeprefix("/"), content)
        return session.state()


class _Handler(BaseHTTPRequestHandler):
    server: LabellingServer
    server_version = "curate-label"

    def do_GET(self) -> None:
        """The page, /state?rater=NAME, or /picture?name=NAME."""
        address = urlsplit(self.path)
        if self._is_refused("page" if address.path == "/" else "file"):
            return
        if address.path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.page().encode())
        elif address.path == "/state":
            self._answer(lambda: self.server.session(_given(address.query, "rater")).state())
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
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
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
