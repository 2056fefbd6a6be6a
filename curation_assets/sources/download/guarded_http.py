"""One GET from a public web server: a checked address, and a deadline on look-up, connection, TLS, headers and body.

A server can hold a client at every step: a byte of the status line now and then, one `100 Continue` after the other,
trailers without end. So each wait on the socket lasts at most what the deadline leaves.
"""

import contextlib
import http.client
import math
import queue
import socket
import ssl
import string
import threading
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from curation_assets.stores.images import ImageRejected
from curation_assets.stores.url_safety import (
    UrlRefused,
    ascii_url,
    check_addresses,
    is_allowed,
    resolve_host,
    vet_url,
)
from curation_assets.stores.web_addresses import canonical_host, host_and_port, is_address

MAX_CODINGS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Deadline:
    """When work must be done. `idle_seconds`: the longest that a single step may wait for a sign of life."""

    def __init__(
        self, seconds: float, idle_seconds: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline, negative after it."""
        return self._end - self._clock()

    def patience(self) -> float:
        """Seconds that the next step may take, more than 0. Raises TimeoutError after the deadline."""
        left = self.left
        if left <= 0:
            raise TimeoutError(f"timed out: not complete after {self.seconds:g} s")
        return min(left, self._idle_seconds)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside does not count."""
        begin = self._clock()
        try:
            yield
        finally:
            self._end += self._clock() - begin


class _Bounded:
    """A socket whose every receive and send ends when the patience of its deadline does."""

    deadline: Deadline

    def recv_into(self, *arguments: Any, **options: Any) -> Any:
        self.settimeout(self.deadline.patience())  # type: ignore[attr-defined]
        return super().recv_into(*arguments, **options)  # type: ignore[misc]

    def send(self, *arguments: Any, **options: Any) -> Any:
        self.settimeout(self.deadline.patience())  # type: ignore[attr-defined]
        return super().send(*arguments, **options)  # type: ignore[misc]

    def sendall(self, *arguments: Any, **options: Any) -> Any:
        self.settimeout(self.deadline.patience())  # type: ignore[attr-defined]
        return super().sendall(*arguments, **options)  # type: ignore[misc]


class _Socket(_Bounded, socket.socket):
    pass


class _TlsSocket(_Bounded, ssl.SSLSocket):
    pass


class Response:
    """Status and headers of an answer, and its body on demand, while the connection is open."""

    def __init__(self, url: str, response: http.client.HTTPResponse, deadline: Deadline) -> None:
        self.url = url
        self.status = response.status
        self.phrase = response.reason
        self.headers = response.headers
        self._response, self._deadline = response, deadline

    @property
    def next_url(self) -> str | None:
        """Where a redirect leads (not vetted yet); None for every other answer. Raises UrlRefused."""
        location = self.headers.get("Location")
        if self.status not in REDIRECTS or not location:
            return None
        sent = location.strip().encode("iso-8859-1", "replace")  # http.client's reading of the bytes
        try:
            text = sent.decode("utf-8")
        except UnicodeDecodeError:
            text = urllib.parse.quote(sent, safe=string.punctuation)
        try:
            return ascii_url(urllib.parse.urljoin(self.url, text))
        except ValueError as error:
            raise UrlRefused("malformed", location, f"scheme://host[:port]/path ({error})") from error

    def read(self, max_bytes: int) -> bytes:
        """The whole body, decoded. Raises ImageRejected('too_many_bytes', 'content_encoding'), TimeoutError,
        http.client.IncompleteRead.
        """
        announced = self._response.length
        if announced is not None and announced > self._most_sent(max_bytes):
            raise ImageRejected("too_many_bytes", f"{announced} bytes announced, at most {max_bytes}")
        body, received, is_whole = self._read(max_bytes + 1)
        if is_whole is None:
            raise ImageRejected("too_many_bytes", f"more than {max_bytes} bytes")
        if not is_whole or (announced is not None and received < announced):
            raise http.client.IncompleteRead(b"", None if announced is None else announced - received)
        return body

    def read_start(self, max_bytes: int) -> bytes:
        """The first bytes of the body, decoded, or all of a shorter one. Raises TimeoutError,
        http.client.HTTPException, ImageRejected('content_encoding').
        """
        return self._read(max_bytes)[0]

    def _most_sent(self, max_bytes: int) -> int:
        """Bytes that may come for a body of `max_bytes`: what cannot be compressed grows a little by its coding."""
        return max_bytes + (max_bytes // 1000 + 1000 if "Content-Encoding" in self.headers else 0)

    def _read(self, max_bytes: int) -> tuple[bytes, int, bool | None]:
        """At most `max_bytes` of the decoded body, how many bytes came for them, and whether the body is whole; None
        where it was left off at the limit.
        """
        decoders = [_Decoder(coding) for coding in reversed(_codings(self.headers.get_all("Content-Encoding", [])))]
        blocks: list[bytes] = []
        received, decoded, most_sent = 0, 0, self._most_sent(max_bytes)
        while received < most_sent and decoded < max_bytes:
            self._deadline.patience()  # what lies in buffers needs no socket
            block = self._response.read1(min(1 << 16, most_sent - received))
            if not block:
                return b"".join(blocks), received, all(decoder.is_done for decoder in decoders)
            received += len(block)
            for decoder in decoders:
                block = decoder.decode(block, most_sent)
            blocks.append(block[: max_bytes - decoded])
            decoded += len(blocks[-1])
        return b"".join(blocks), received, None


def _codings(headers: Sequence[str]) -> list[str]:
    """Content codings in the order in which they were applied. Raises ImageRejected for more than MAX_CODINGS."""
    codings = [one.strip().lower() for header in headers for one in header.split(",")]
    codings = [one for one in codings if one not in ("", "identity")]
    if len(codings) > MAX_CODINGS:
        raise ImageRejected("content_encoding", f"{len(codings)} content codings, at most {MAX_CODINGS}")
    return codings


class _Decoder:
    """One content coding of a body, undone block by block. What only claims to be coded is passed on as it is."""

    def __init__(self, coding: str) -> None:
        """Raises ImageRejected('content_encoding') for a coding that is neither gzip nor deflate."""
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise ImageRejected("content_encoding", f"got Content-Encoding {coding[:40]!r}, read are gzip and deflate")
        self._is_gzip = coding != "deflate"
        self._start = b""  # until there are two bytes, which tell
        self._zlib: Any = None
        self._is_plain = False

    @property
    def is_done(self) -> bool:
        """Whether the coded stream has ended; so has one that never began."""
        return self._is_plain or self._zlib is None or self._zlib.eof

    def decode(self, block: bytes, max_bytes: int) -> bytes:
        """Decoded bytes of a block, at most `max_bytes`: a small block may stand for very many."""
        if self._is_plain:
            return block
        if self._zlib is None:
            block = self._start = self._start + block
            if len(block) < 2:
                return b""
            if self._is_gzip:
                self._is_plain, wbits = block[:2] != b"\x1f\x8b", 31
            else:  # with the header of zlib, or, as some servers send it, without
                wbits = 15 if block[0] & 15 == 8 and int.from_bytes(block[:2]) % 31 == 0 else -15
            if self._is_plain:
                return block
            self._zlib = zlib.decompressobj(wbits)
            try:
                return self._zlib.decompress(block, max_bytes)  # type: ignore[no-any-return]
            except zlib.error:
                self._is_plain = not self._is_gzip
                if not self._is_plain:
                    raise _damaged() from None
                return block
        try:
            return self._zlib.decompress(self._zlib.unconsumed_tail + block, max_bytes)  # type: ignore[no-any-return]
        except zlib.error:
            raise _damaged() from None


def _damaged() -> ImageRejected:
    return ImageRejected("content_encoding", "the body is not what its Content-Encoding says")


class GuardedHttp:
    """Asks vetted URLs at public addresses. No proxy, no cookies, no redirects, no file, ftp or data URLs.

    `allow_hosts`: 'host' or 'host:port' entries that may be private. `connect_to` maps the host of a URL to the
    'address:port' to connect to instead (curl's --connect-to): a stable name for a server of one's own.
    """

    def __init__(
        self, allow_hosts: Sequence[str] = (), connect_to: Mapping[str, str] | None = None, *, user_agent: str
    ) -> None:
        self._connect_to = {host_and_port(host): target for host, target in (connect_to or {}).items()}
        self._allow_hosts = (*allow_hosts, *(connect_to or {}))
        self._headers = {"User-Agent": user_agent, "Connection": "close"}
        self._tls = ssl.create_default_context()
        self._tls.sslsocket_class = _TlsSocket

    @contextlib.contextmanager
    def get(self, url: str, deadline: Deadline) -> Iterator[Response]:
        """The answer to one request. Raises UrlRefused, OSError (TimeoutError too), http.client.HTTPException."""
        with self._answer("GET", url, deadline) as response:
            yield response

    @contextlib.contextmanager
    def post(self, url: str, content: bytes, content_type: str, deadline: Deadline) -> Iterator[Response]:
        """The answer to one request that sends `content`. Raises what `get` raises."""
        with self._answer("POST", url, deadline, content, {"Content-Type": content_type}) as response:
            yield response

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        url: str,
        deadline: Deadline,
        content: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Response]:
        parts = urllib.parse.urlsplit(self.vet(url))
        is_tls = parts.scheme == "https"
        host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if is_tls else 80)
        connection = (http.client.HTTPSConnection if is_tls else http.client.HTTPConnection)(host, port)
        with contextlib.closing(connection):
            connection.sock = self._socket(host, port, deadline)
            if is_tls:
                connection.sock = self._over_tls(connection.sock, host, deadline)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, content, {**self._headers, **headers})
            with contextlib.closing(connection.getresponse()) as response:
                yield Response(url, response, deadline)

    def vet(self, url: str) -> str:
        """The URL as it is sent. Raises UrlRefused for one that `get` refuses by its text."""
        return vet_url(url, self._allow_hosts)

    def is_own(self, url: str) -> bool:
        """Whether `connect_to` states where the server of a vetted URL is."""
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return self._target((parts.hostname or "").rstrip("."), port) is not None

    def _target(self, host: str, port: int) -> str | None:
        host = canonical_host(host)
        return self._connect_to.get((host, None)) or self._connect_to.get((host, port))

    def _socket(self, host: str, port: int, deadline: Deadline) -> _Socket:
        """Resolve, check all addresses, connect to the first that answers: no second look-up to be lied to in."""
        target = self._target(host, port)
        if target is not None:
            target_host, _, target_port = target.rpartition(":")
            addresses = _resolve_in_time(target_host.strip("[]"), int(target_port), deadline)
        else:
            addresses = _resolve_in_time(host, port, deadline)
            if not is_allowed(host, port, self._allow_hosts):
                check_addresses(f"{host}:{port}", addresses)
        failure: OSError | None = None
        for family, kind, protocol, _, socket_address in addresses:
            connection = _Socket(family, kind, protocol)
            connection.deadline = deadline
            try:
                connection.settimeout(deadline.patience())
                connection.connect(socket_address)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        raise failure or OSError(f"{host} has no address")

    def _over_tls(self, connection: socket.socket, host: str, deadline: Deadline) -> _TlsSocket:
        connection.settimeout(deadline.patience())  # for the whole handshake
        wrapped = self._tls.wrap_socket(connection, server_hostname=host)
        assert isinstance(wrapped, _TlsSocket), f"the context made a {type(wrapped).__name__}"
        wrapped.deadline = deadline
        return wrapped


def _resolve_in_time(host: str, port: int, deadline: Deadline) -> list[Any]:
    """The system's resolver knows no time limit: it works in a thread that is left behind when the time is up. An
    address is looked up nowhere.
    """
    if is_address(host):
        return resolve_host(host, port)
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(resolve_host(host, port))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    patience = deadline.patience()
    threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=patience)
    except queue.Empty:
        raise TimeoutError(f"timed out: no name server knew {host} after {patience:.1f} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
