"""A web server that answers byte by byte as a test says, on 127.0.0.1 and an ephemeral port."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

#: Writes the answer to a connection; `Visit.wait` is its sleep.
Answer = Callable[["Visit"], None]


class Visit:
    """One request: its path, and the connection to answer on."""

    def __init__(self, server: "RawServer", connection: socket.socket, path: str, head: str = "") -> None:
        self.server, self.connection, self.path, self.head = server, connection, path, head

    def send(self, data: bytes) -> None:
        """Raises OSError once the client has left."""
        self.connection.sendall(data)

    def wait(self, seconds: float) -> None:
        """Sleep that ends (OSError) when the server closes."""
        if self.server.closing.wait(seconds):
            raise OSError("the server closes")


class RawServer:
    """Use as a context manager. `answers`: path → answer; a path that is not there gets 404.

    `requests` lists the paths in order, `heads` their headers, `times` when they came; `connections` counts accepted
    connections. `before_request` answers a connection before anything is read from it (a stalled TLS handshake).
    """

    def __init__(self, answers: Mapping[str, Answer], before_request: Answer | None = None) -> None:
        self.answers = dict(answers)
        self.before_request = before_request
        self.requests: list[str] = []
        self.heads: list[str] = []
        self.times: list[float] = []
        self.connections = 0
        self.closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"  # for allow_hosts
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def url(self, path: str, scheme: str = "http") -> str:
        """URL of a path."""
        return f"{scheme}://{self.host}{path}"

    def __enter__(self) -> "RawServer":
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.closing(connection), contextlib.suppress(OSError):
            if self.before_request is not None:
                self.before_request(Visit(self, connection, ""))
                return
            head = b""
            while b"\r\n\r\n" not in head:
                received = connection.recv(1 << 16)
                if not received:
                    return
                head += received
            path = head.split(b" ", 2)[1].decode("latin-1")
            self.times.append(time.monotonic())
            self.heads.append(head.decode("latin-1"))
            self.requests.append(path)
            answer = self.answers.get(path.partition("?")[0], reply(404))
            answer(Visit(self, connection, path, head.decode("latin-1")))


def reply(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    """A whole answer; `_` in names of headers stands for `-`."""
    lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    return lambda visit: visit.send(data)


def drip(begin: bytes, again: bytes, seconds: float = 0.02) -> Answer:
    """Some bytes at once, then others for ever, every few hundredths of a second: always lively, never done."""

    def answer(visit: Visit) -> None:
        visit.send(begin)
        while True:
            visit.wait(seconds)
            visit.send(again)

    return answer


def silence(visit: Visit) -> None:
    """Nothing at all."""
    while True:
        visit.wait(60)


def endless_redirects(visit: Visit) -> None:
    """Each to a new URL of the same answer, a little later."""
    visit.wait(0.02)
    begin, _, number = visit.path.partition("?")
    visit.send(f"HTTP/1.1 302 Found\r\nLocation: {begin}?{int(number or 0) + 1}\r\nContent-Length: 0\r\n\r\n".encode())


_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"

#: Name → answer that never ends, though no two bytes of most are more than 20 ms apart.
SLOW_ANSWERS: Mapping[str, Answer] = {
    "no_answer": silence,
    "status_line": drip(b"HTTP/1.1 2", b"0"),
    "header_line": drip(_OK + b"X-Slow: ", b"x"),
    "chunk_size": drip(_CHUNKED, b"0"),
    "trailers": drip(_CHUNKED + b"5\r\nhello\r\n0\r\n", b"X-Trailer: 1\r\n"),
    "continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "continue_flood": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500, 0.0),
    "body": drip(_OK + b"Content-Length: 100000\r\n\r\n", b"x"),
    "body_without_length": drip(_OK + b"\r\n", b"x"),
    "redirects": endless_redirects,
}

#: The same for TLS: nothing, or the bytes of a first record one by one.
SLOW_HANDSHAKES: Mapping[str, Answer] = {
    "no_handshake": silence,
    "handshake": drip(b"\x16\x03\x03\x40\x00", b"\x02"),
}
