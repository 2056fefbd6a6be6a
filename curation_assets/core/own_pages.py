"""Whom a server on 127.0.0.1 answers: this machine's own pages and programs, and no page of another site.

A browser sends a request to 127.0.0.1 for any page that names it. A foreign page shows by the Host (a name of its own
that resolves to 127.0.0.1), by Origin and Fetch Metadata, and by the Referer where a browser sends neither. What sends
none of them may be a program or a page that hides itself: so nothing is changed by a GET, and a request that changes
something is JSON, which a browser sends to another origin only after a preflight. We never allow one.

Only the standard library is imported: `curate explore` loads this file into the viewer's own environment.
"""

import socket
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

HOST = "127.0.0.1"
OWN_NAMES = (HOST, "localhost")
#: Of every answer, for browsers that do not say where a request comes from: no other site shows or embeds it.
ANSWER_HEADERS = (
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
)

#: page: another site may link to it; file: pages of ours read it; action: is posted as JSON, may change something.
Kind = Literal["page", "file", "action"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def listening(port: int) -> socket.socket:
    """A socket for a server on this machine; port 0 takes a free one. Raises OSError for a port in use."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise OSError(error.errno, f"{HOST}:{port} cannot be used ({error.strerror}); give another --port") from error


class Headers(Protocol):
    """Headers of a request by their lower-case name."""

    def get(self, name: str, /) -> str | None:
        """The value, None where it was not sent."""


def refusal(method: str, headers: Headers, kind: Kind, names: Collection[str] = OWN_NAMES) -> tuple[int, str] | None:
    """Status and sentence for a request that is refused, None for one to answer. `names`: hosts without their port.

    A WebSocket is a GET of kind file.
    """
    host = (headers.get("host") or "").lower()
    if _name_of(f"//{host}") not in names:
        return 400, f"this server does not answer to the name {host!r}: open it as 127.0.0.1"
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    sent_by = origin or (headers.get("referer") if site is None else None)
    is_foreign = site not in (None, "same-origin", "none") or (sent_by is not None and _host_of(sent_by) != host)
    is_read = method in ("GET", "HEAD")
    if is_foreign:
        is_link = method == "GET" and origin is None and headers.get("sec-fetch-dest") in (None, "document")
        return None if kind == "page" and is_link else (403, "requests of other origins are refused")
    if is_read and kind == "action":
        return 405, "nothing is done by GET: send a POST of JSON"
    is_json = (headers.get("content-type") or "").partition(";")[0].strip().lower() == "application/json"
    if not is_read and not is_json and (kind == "action" or origin is None):
        return 415, "expected a body of JSON, with Content-Type: application/json"
    return None


def _host_of(address: str) -> str | None:
    """host[:port] of a URL; None where it has none, as the origin `null`."""
    try:
        return urlsplit(address).netloc.lower() or None
    except ValueError:
        return None


def _name_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class OwnPagesOnly:
    """An ASGI application behind `refusal`."""

    def __init__(self, app: App, kind_of: Callable[[Message], Kind], names: Collection[str] = OWN_NAMES) -> None:
        """`kind_of`: the kind of resource that the scope of an HTTP request names."""
        self.app = app
        self.kind_of = kind_of
        self.names = tuple(names)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        is_http = scope["type"] == "http"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = refusal(
            scope["method"] if is_http else "GET", headers, self.kind_of(scope) if is_http else "file", self.names
        )

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in ANSWER_HEADERS]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        if refused is None:
            await self.app(scope, receive, send_protected)
        elif not is_http:
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1]})
        else:
            status, sentence = refused
            kind = [(b"content-type", b"text/plain; charset=utf-8")]
            await send_protected({"type": "http.response.start", "status": status, "headers": kind})
            await send({"type": "http.response.body", "body": sentence.encode()})
