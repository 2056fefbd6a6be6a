"""One request: where it connects, how long each step may take, how much is read."""

import datetime
import gzip
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp
from curation_assets.sources.download.reasons import reason_of
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.url_safety import UrlRefused
from tests.support.raw_server import SLOW_ANSWERS, SLOW_HANDSHAKES, RawServer, Visit, reply

PATIENT = 60.0  # seconds; nothing here takes them unless it hangs


class Clock:
    """A clock that goes on when it is looked at."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def http_to(*servers: RawServer, **connect_to: str) -> GuardedHttp:
    return GuardedHttp([server.host for server in servers], connect_to, user_agent="test/1")


def get(http_client: GuardedHttp, url: str, *, seconds: float = PATIENT, max_bytes: int = 1000) -> bytes:
    with http_client.get(url, Deadline(seconds)) as response:
        return response.read(max_bytes)


def ends(work: Callable[[], object]) -> BaseException | None:
    """What a call raises; it fails the test where the call does not end at all."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            raised.append(None)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENT)
    assert raised, "it did not end"
    return raised[0]


def test_a_deadline_leaves_each_step_what_is_left() -> None:
    clock = Clock()
    deadline = Deadline(5, 3, clock)
    assert (deadline.left, deadline.patience()) == (5, 3)
    clock.now += 4
    assert deadline.patience() == 1
    with deadline.paused():
        clock.now += 1000
    assert deadline.patience() == 1
    clock.now += 1
    with pytest.raises(TimeoutError, match="timed out: not complete after 5 s"):
        deadline.patience()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SLOW_ANSWERS if name != "redirects"])
def test_an_answer_without_end_ends_with_the_deadline(name: str) -> None:
    with RawServer({"/": SLOW_ANSWERS[name]}) as server:
        error = ends(lambda: get(http_to(server), server.url("/"), seconds=0.3, max_bytes=1 << 30))
    assert isinstance(error, TimeoutError)
    assert "timed out" in str(error)


@pytest.mark.parametrize("name", SLOW_HANDSHAKES)
def test_a_handshake_without_end_ends_with_the_deadline(name: str) -> None:
    with RawServer({}, SLOW_HANDSHAKES[name]) as server:
        error = ends(lambda: get(http_to(server), server.url("/", "https"), seconds=0.3))
    assert isinstance(error, TimeoutError)
    assert "timed out" in str(error)


def test_lively_answers_are_cut_by_the_clock_and_not_by_the_wait() -> None:
    """The server is never silent for long: only a look at the clock can end it. Each look costs a second here."""
    with RawServer({"/": SLOW_ANSWERS["continue_flood"]}) as server:
        clock = Clock(step=1.0)

        def flooded() -> None:
            with http_to(server).get(server.url("/"), Deadline(50, clock=clock)):
                pass

        assert isinstance(ends(flooded), TimeoutError)
        assert 150 <= clock.now < 170


def test_a_name_server_that_is_silent_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    closing_time = threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[tuple]:
        closing_time.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    error = ends(lambda: get(GuardedHttp(user_agent="test/1"), "http://slow.example/", seconds=0.2))
    closing_time.set()
    assert isinstance(error, TimeoutError)
    assert "no name server knew slow.example" in str(error)


def test_an_address_is_not_looked_up_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is: its server may be silent for good."""
    threads: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        threads.append(thread.name)
        start(thread)

    with RawServer({"/": reply(body=b"hello")}) as server:
        port = server.host.rpartition(":")[2]
        monkeypatch.setattr(threading.Thread, "start", noted)
        assert get(http_to(server), server.url("/")) == b"hello"
        assert not [name for name in threads if name.startswith("look up")]
        assert get(GuardedHttp([f"localhost:{port}"], user_agent="test/1"), f"http://localhost:{port}/") == b"hello"
        assert [name for name in threads if name.startswith("look up")] == ["look up localhost"]


def test_bodies_are_bounded_and_whole() -> None:
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nA: b\r\n\r\n"
    answers = {
        "/short": reply(body=b"hello"),
        "/chunks": lambda visit: visit.send(chunks),
        "/open": lambda visit: visit.send(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"),
        "/long": reply(body=bytes(1001)),
        "/longer": lambda visit: visit.send(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2000)),
        "/cut": lambda visit: visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"),
        "/cut_chunk": lambda visit: visit.send(chunks[:-20]),
    }
    with RawServer(answers) as server:
        http_client = http_to(server)
        bodies = [get(http_client, server.url(path)) for path in ("/short", "/chunks", "/open")]
        assert bodies == [b"hello", b"abcdefg", b"until the end"]
        for path in ("/long", "/longer"):
            with pytest.raises(ImageRejected, match="too_many_bytes"):
                get(http_client, server.url(path))
        for path in ("/cut", "/cut_chunk"):
            with pytest.raises(http.client.IncompleteRead):
                get(http_client, server.url(path))
        with http_client.get(server.url("/longer"), Deadline(PATIENT)) as response:
            assert len(response.read_start(100)) == 100


IMAGE = bytes(range(256)) * 3


def _without_header(data: bytes) -> bytes:
    """Deflate as RFC 1951 has it, which some servers send as `deflate`."""
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(data) + coder.flush()


CODED = {
    "gzip": gzip.compress(IMAGE),
    "x-gzip": gzip.compress(IMAGE),
    "deflate": zlib.compress(IMAGE),
    "Deflate": _without_header(IMAGE),
    "gzip, identity": gzip.compress(IMAGE),
    "deflate, gzip": gzip.compress(zlib.compress(IMAGE)),
    "identity": IMAGE,
    "": IMAGE,
}


@pytest.mark.slow
@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_coded_bodies_are_decoded(coding: str, piece: int) -> None:
    body = CODED[coding]

    def chunked(visit: Visit) -> None:
        visit.send(f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunks = [body[start : start + piece] for start in range(0, len(body), piece)]
        visit.send(b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n")

    with RawServer({"/": reply(body=body, Content_Encoding=coding), "/chunks": chunked}) as server:
        assert get(http_to(server), server.url("/")) == IMAGE
        assert get(http_to(server), server.url("/chunks")) == IMAGE
        with http_to(server).get(server.url("/"), Deadline(PATIENT)) as response:
            assert response.read_start(100) == IMAGE[:100]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_only_claims_to_be_coded_is_read_as_it_is(coding: str) -> None:
    """Servers send stored JPEGs, PNGs, GIFs, WebPs and BMPs with a header that is meant for pages."""
    for start in (b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\x00\x01\x00\x00WEBP", b"BM"):
        body = start + os.urandom(500)
        with RawServer({"/": reply(body=body, Content_Encoding=coding)}) as server:
            assert get(http_to(server), server.url("/")) == body


def test_a_bomb_ends_at_the_limit() -> None:
    zeros = bytes(50_000_000)
    once = gzip.compress(zeros)
    answers = {
        "/gzip": reply(body=once, Content_Encoding="gzip"),
        "/deflate": reply(body=zlib.compress(zeros), Content_Encoding="deflate"),
        "/twice": reply(body=gzip.compress(once), Content_Encoding="gzip, gzip"),
    }
    with RawServer(answers) as server:
        for path in answers:
            tracemalloc.start()
            with pytest.raises(ImageRejected, match="too_many_bytes"):
                get(http_to(server), server.url(path), max_bytes=100_000)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 5_000_000


@pytest.mark.parametrize(
    ("coding", "body", "reason"),
    [
        ("br", b"x" * 20, "content_encoding: got Content-Encoding 'br'"),
        ("zstd", b"x" * 20, "content_encoding"),
        ("gzip, gzip, gzip, gzip", b"", "content_encoding: 4 content codings"),
        ("gzip", b"\x1f\x8b\x08\x00" + b"x" * 50, "content_encoding: the body is not"),
        ("gzip", gzip.compress(IMAGE)[:-8] + b"12345678", "content_encoding: the body is not"),
    ],
)
def test_a_coding_that_cannot_be_read_has_a_reason(coding: str, body: bytes, reason: str) -> None:
    with RawServer({"/": reply(body=body, Content_Encoding=coding)}) as server, pytest.raises(ImageRejected) as refused:
        get(http_to(server), server.url("/"))
    assert reason in str(refused.value)
    assert reason_of("failed_to_download", str(refused.value)) == "image_content_encoding"


def test_a_coded_body_that_is_cut_is_incomplete() -> None:
    for body in (gzip.compress(IMAGE)[:-20], gzip.compress(os.urandom(900))[:300]):
        with (
            RawServer({"/": reply(body=body, Content_Encoding="gzip")}) as server,
            pytest.raises(http.client.IncompleteRead),
        ):
            get(http_to(server), server.url("/"))


def test_a_request_has_the_host_the_path_and_an_honest_agent() -> None:
    with RawServer({"/ä": reply()}) as server:
        port = server.host.rsplit(":", 1)[1]
        get(http_to(**{"scenes.test": server.host}), f"http://scenes.test:{port}/a%20b/ä?q=ü#part")
        get(http_to(**{"scenes.test": server.host}), "http://SCENES.test?x=1")
    first, second = (head.split("\r\n") for head in server.heads)
    assert first[0] == "GET /a%20b/%C3%A4?q=%C3%BC HTTP/1.1"
    assert {f"Host: scenes.test:{port}", "User-Agent: test/1", "Connection: close"} <= set(first)
    assert second[0] == "GET /?x=1 HTTP/1.1"
    assert "Host: scenes.test" in second


def answers_of(*addresses: str) -> Callable[..., list[tuple]]:
    """A name server that gives the same addresses to every question."""

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in addresses
        ]

    return getaddrinfo


def test_a_name_that_turns_private_after_vetting_is_refused_when_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the text is fine, the name server lies later."""
    with RawServer({"/": reply()}) as server:
        port = server.host.rsplit(":", 1)[1]
        monkeypatch.setattr(socket, "getaddrinfo", answers_of("127.0.0.1"))
        for scheme in ("http", "https"):
            with pytest.raises(UrlRefused, match="private_address"):
                get(http_to(server), f"{scheme}://innocent.example:{port}/")
        assert server.connections == 0


def test_connect_to_gives_a_server_of_ones_own_a_stable_name() -> None:
    with RawServer({"/": reply(body=b"hello")}) as server:
        http_client = http_to(**{"scenes.test": server.host})
        assert get(http_client, "http://scenes.test/") == b"hello"
        assert http_client.is_own("http://Scenes.test/")
        assert not http_client.is_own(server.url("/"))
        with pytest.raises(UrlRefused):
            get(http_client, server.url("/"))


def test_redirects_are_named_and_not_followed() -> None:
    answers = {
        "/a": reply(302, Location="b c?ü"),
        "/b": reply(307, Location="//other.example/x"),
        "/none": reply(302),
        "/broken": reply(301, Location="http://[::1/"),
        "/fine": reply(200, Location="/x"),
    }
    with RawServer(answers) as server:
        http_client = http_to(server)

        def next_of(path: str) -> str | None:
            with http_client.get(server.url(path), Deadline(PATIENT)) as response:
                return response.next_url

        assert next_of("/a") == server.url("/b%20c?%C3%BC")
        assert next_of("/b") == "http://other.example/x"
        assert next_of("/none") is next_of("/fine") is None
        with pytest.raises(UrlRefused, match="malformed"):
            next_of("/broken")
        assert server.requests == ["/a", "/b", "/none", "/fine", "/broken"]


def certificate(folder: Path) -> Path:
    """A self-signed certificate of 127.0.0.1, and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_the_deadline_holds_over_tls_too(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def shake_hands(visit: Visit) -> None:
        with closing(context.wrap_socket(visit.connection, server_side=True)) as connection:
            path = connection.recv(1 << 16).split(b" ")[1].decode()
            answer = SLOW_ANSWERS["status_line"] if path == "/slow" else reply(body=b"hello")
            answer(Visit(visit.server, connection, path))

    with RawServer({}, shake_hands) as server:
        http_client = http_to(server)
        with pytest.raises(ssl.SSLCertVerificationError):
            get(http_client, server.url("/", "https"))
        http_client._tls.load_verify_locations(cadata=pem.read_text()[pem.read_text().index("-----BEGIN CERT") :])
        assert get(http_client, server.url("/", "https")) == b"hello"
        error = ends(lambda: get(http_client, server.url("/slow", "https"), seconds=0.5))
    assert isinstance(error, TimeoutError)
