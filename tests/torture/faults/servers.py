"""Servers that hold their clients, refuse them, or point them at this machine: every row ends with a reason."""

import hashlib
import io
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.sources.download import guarded_http
from curation_assets.sources.download.download import DownloadSettings, download_shard
from curation_assets.stores.images import TarIndex
from curation_assets.stores.url_safety import is_public_address
from tests.support.raw_server import SLOW_ANSWERS, SLOW_HANDSHAKES, RawServer, drip, reply
from tests.torture.outcome import Fault, Outcome

MAX_SECONDS = 0.5
GUARD_SECONDS = 60.0  # beyond any machine's slowness; what hangs, hangs for ever
SHARD = "torture-000000"
#: After five redirects there is no robots.txt (RFC 9309), so those of this one would end as a permission.
SLOW_ROBOTS = {name: answer for name, answer in SLOW_ANSWERS.items() if name != "redirects"}


def picture(rng: random.Random) -> bytes:
    pixels = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def rows_of(urls: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": [hashlib.sha256(f"{index} {url}".encode()).hexdigest()[:32] for index, url in enumerate(urls)],
            "source_row": list(range(len(urls))),
            "url": list(urls),
            "caption": ["a caption"] * len(urls),
        },
        schema_overrides={"url": pl.String},
    )


def downloaded(
    folder: Path,
    urls: Sequence[str],
    outcome: Outcome,
    settings: DownloadSettings,
    allow_hosts: Sequence[str],
    note: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """raw/downloads of the URLs. An endless download is a silent wait."""
    results: list[pl.DataFrame | Exception] = []

    def work() -> None:
        try:
            results.append(
                download_shard(
                    rows_of(urls),
                    folder,
                    SHARD,
                    settings=settings,
                    allow_hosts=tuple(allow_hosts),
                    note=note,
                    robots_folder=folder / "robots_txt",
                )
            )
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(GUARD_SECONDS)
    if not results:
        outcome.silent_waits += 1
        raise AssertionError(f"the download of {list(urls)} did not end within {GUARD_SECONDS:g} s")
    if isinstance(results[0], Exception):
        raise results[0]
    ended = results[0].filter(
        ((pl.col("status") == "kept") & pl.col("reason").is_null())
        | (pl.col("status").is_in(["dropped", "failed"]) & pl.col("reason").is_not_null())
    )
    outcome.count_rows(len(urls), ended["sample_id"].n_unique())
    return results[0]


def stored(folder: Path, row: dict[str, Any]) -> bytes | None:
    """The image as it lies in the tar."""
    return None if row["status"] != "kept" else TarIndex(folder / SHARD / row["tar"]).read(row["member"])


def slow_answers(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    good = {f"/good{number}.jpg": picture(rng) for number in range(4)}
    answers = {path: reply(body=body) for path, body in good.items()}
    slow = {f"/{name}.jpg": answer for name, answer in SLOW_ANSWERS.items()}
    settings = DownloadSettings(
        timeout_seconds=GUARD_SECONDS, max_seconds=MAX_SECONDS, retries=1, threads=32, domain_requests_per_second=None,
        domain_connections=32,
    )  # fmt: skip
    # What a neighbour of it must be equal to; a slow machine gets all the time it needs.
    with RawServer(answers) as server:
        undisturbed = downloaded(
            folder / "undisturbed", [server.url(path) for path in good], outcome,
            DownloadSettings(timeout_seconds=GUARD_SECONDS, max_seconds=GUARD_SECONDS), [server.host],
        )  # fmt: skip
        expected = [stored(folder / "undisturbed", row) for row in undisturbed.iter_rows(named=True)]
    with ExitStack() as running:
        server = running.enter_context(RawServer(answers | slow))
        shakers = [running.enter_context(RawServer({}, handshake)) for handshake in SLOW_HANDSHAKES.values()]
        slow_robots = [
            running.enter_context(RawServer({"/robots.txt": answer, "/a.jpg": reply(body=picture(rng))}))
            for _, answer in rng.sample(sorted(SLOW_ROBOTS.items()), 3)
        ]
        bad = [server.url(path) for path in slow]
        bad += [shaker.url("/a.jpg", "https") for shaker in shakers]
        bad += [one.url("/a.jpg") for one in slow_robots]
        urls = [*bad, *(server.url(path) for path in good)]
        rng.shuffle(urls)
        hosts = [one.host for one in (server, *shakers, *slow_robots)]
        output = downloaded(folder / "disturbed", urls, outcome, settings, hosts)
    for url, row in zip(urls, output.iter_rows(named=True), strict=True):
        name = url.rsplit("/", 1)[1]
        if url in bad:
            allowed = {"download_timeout"} | ({"download_redirect_loop"} if name == "redirects.jpg" else set())
            allowed |= {"robots_txt"} if url in {one.url("/a.jpg") for one in slow_robots} else set()
            assert row["status"] == "failed", f"{url}: {row}"
            assert row["reason"] in allowed, f"{url}: {row}"
            outcome.faults_reached += 1
        else:
            position = sorted(good).index(f"/{name}")
            # A neighbour may run out of half a second on a busy machine, but never come out otherwise.
            if row["reason"] != "download_timeout":
                outcome.harmed_neighbours += stored(folder / "disturbed", row) != expected[position]


#: Written so that something on this machine or its network would answer; PORT is that of a server that listens.
HOSTILE_URLS = (
    "http://127.0.0.1:PORT/a.jpg", "http://127.0.0.1/a.jpg", "https://127.0.0.1:PORT/a.jpg", "http://127.8.9.1:PORT/",
    "http://localhost:PORT/a.jpg", "http://LOCALHOST.:PORT/a.jpg", "http://a.localhost:PORT/", "http://0.0.0.0:PORT/",
    "http://0:PORT/a.jpg", "http://127.1:PORT/a.jpg", "http://2130706433:PORT/a.jpg", "http://0x7f000001:PORT/a.jpg",
    "http://0177.0.0.1:PORT/a.jpg", "http://017700000001:PORT/", "http://0x7f.0x0.0x0.0x1:PORT/",
    "http://１２７.0.0.1:PORT/a.jpg", "http://127。0。0。1:PORT/a.jpg", "http://①②⑦.0.0.1:PORT/", "http://%31%32%37.0.0.1:PORT/",
    "http://127.0.0.1%2f:PORT/", "http://[::1]:PORT/a.jpg", "http://[::]:PORT/", "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/", "http://[::127.0.0.1]:PORT/", "http://[64:ff9b::7f00:1]:PORT/",
    "http://[2002:7f00:1::]:PORT/", "http://[::1%25lo]:PORT/", "http://[fe80::1%25eth0]:PORT/", "http://[fc00::1]:PORT/",
    "http://[fd00:ec2::254]/latest/meta-data/", "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1:PORT/",
    "http://172.16.0.1:PORT/", "http://192.168.0.1:PORT/", "http://100.64.0.1:PORT/", "http://198.18.0.1:PORT/",
    "http://224.0.0.1:PORT/", "http://240.0.0.1:PORT/", "http://255.255.255.255:PORT/", "http://metadata.google.internal/",
    "http://printer.local:PORT/", "file:///etc/passwd", "file://127.0.0.1/etc/passwd", "ftp://127.0.0.1:PORT/a.jpg",
    "gopher://127.0.0.1:PORT/_GET", "data:image/png;base64,AAAA",
    "jar:http://127.0.0.1:PORT/", "//127.0.0.1:PORT/a.jpg",
    "a.jpg", "", " ", "http://", "http:///a.jpg", "http:127.0.0.1:PORT/", "http://user@127.0.0.1:PORT/",
    "http://user:word@ok.test:PORT/", "http://ok.test@127.0.0.1:PORT/", "http://ok.test:80@127.0.0.1:PORT/",
    "http://127.0.0.1:PORT\\@ok.test/", "http://ok.test\\@127.0.0.1:PORT/", "http://ok.test#@127.0.0.1:PORT/",
    "http://ok.test /", "http://ok.test\t/", "http://ok.test/\r\nHost: 127.0.0.1:PORT", "http://ok.test:99999/",
    "http://ok.test:22/", "http://ok.test:25/", "http://ok.test:-1/", "http://[::1/", "http://::1:PORT/", "http://[127.0.0.1]:PORT/",
    "http://rebind.test:PORT/a.jpg", "https://rebind.test:PORT/a.jpg", "http://mixed.test:PORT/a.jpg",
    "http://six.test:PORT/a.jpg", "http://" + "a" * 70 + ".test/", "http://" + "a." * 2000 + "test/",
    "OPEN/file", "OPEN/private", "OPEN/meta", "OPEN/six", "OPEN/rebind", "OPEN/decimal", "OPEN/userinfo", "OPEN/chain",
    "OPEN/scheme",
)  # fmt: skip

_NAMES = {"rebind.test": ["127.0.0.1"], "mixed.test": ["93.184.216.34", "127.0.0.1"], "six.test": ["::1"]}


def hostile_urls(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """None reaches a private address but the one server that the pool allows."""
    real_lookup, touched = socket.getaddrinfo, []

    def lookup(host: str, port: int, *arguments: Any, **options: Any) -> list[Any]:
        if host not in _NAMES:
            if host != "127.0.0.1":
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")  # tests ask no name server
            return list(real_lookup(host, port, *arguments, **options))
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in _NAMES[host]
        ]

    class Watched(guarded_http._Socket):
        def connect(self, address: Any) -> None:
            touched.append(f"{address[0]}:{address[1]}")
            super().connect(address)

    image = picture(rng)
    with RawServer({"/a.jpg": reply(body=image), "/": reply(body=image)}) as private, RawServer({}) as open_server:
        port = private.host.rsplit(":", 1)[1]
        moved = {
            "/file": "file:///etc/passwd", "/private": f"http://127.0.0.1:{port}/a.jpg",
            "/meta": "http://169.254.169.254/latest/meta-data/", "/six": f"http://[::ffff:127.0.0.1]:{port}/a.jpg",
            "/rebind": f"http://rebind.test:{port}/a.jpg", "/decimal": f"http://2130706433:{port}/a.jpg",
            "/userinfo": f"http://{open_server.host}@127.0.0.1:{port}/a.jpg", "/chain": "/private",
            "/scheme": f"//127.0.0.1:{port}/a.jpg",
        }  # fmt: skip
        open_server.answers |= {path: reply(302, Location=target) for path, target in moved.items()}
        open_server.answers["/good.jpg"] = reply(body=image)
        hostile = [
            url.replace("OPEN", open_server.url("")).replace("PORT", port)
            for url in HOSTILE_URLS
            if url != "OPEN/robots"
        ]
        rng.shuffle(hostile)
        urls = [*hostile, open_server.url("/good.jpg")]
        settings = DownloadSettings(timeout_seconds=10, retries=rng.randrange(3), domain_requests_per_second=None)
        with patch("socket.getaddrinfo", lookup), patch.object(guarded_http, "_Socket", Watched):
            output = downloaded(folder, urls, outcome, settings, [open_server.host])
        reached = {one for one in touched if one != open_server.host and not is_public_address(one.rsplit(":", 1)[0])}
        assert open_server.host in touched, "the watch on connections sees nothing"
        assert not reached, f"connected to {sorted(reached)}"
        outcome.faults_reached += len(moved.keys() & set(open_server.requests))  # redirects that were answered
        assert private.connections == 0, f"requests reached the private server: {private.requests}"
    for url, row in zip(urls, output.iter_rows(named=True), strict=True):
        if url in hostile:
            assert row["status"] == "failed", f"{url!r}: {row}"
            outcome.faults_reached += 1
        else:
            outcome.harmed_neighbours += stored(folder, row) != image


def refusing_server(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """429 with Retry-After to some requests: all images arrive. To all: all rows end. Both times the wait is said."""
    images = {f"/{number}.jpg": picture(rng) for number in range(6)}
    lines: list[str] = []
    settings = DownloadSettings(timeout_seconds=GUARD_SECONDS, max_wait_seconds=3, domain_requests_per_second=None)
    lock = threading.Lock()
    refused: set[str] = set()
    shy = set(rng.sample(sorted(images), 2))

    def shyly(path: str) -> Callable[[Any], None]:
        def answer(visit: Any) -> None:
            with lock:
                is_refused = path in shy and path not in refused
                refused.add(path)
            (reply(429, Retry_After="1") if is_refused else reply(body=images[path]))(visit)

        return answer

    with RawServer({path: shyly(path) for path in images}) as server:
        urls = [server.url(path) for path in images]
        output = downloaded(folder / "shy", urls, outcome, settings, [server.host], lines.append)
    outcome.faults_reached += len(shy & refused)
    for path, row in zip(images, output.iter_rows(named=True), strict=True):
        outcome.harmed_neighbours += stored(folder / "shy", row) != images[path]
    outcome.silent_waits += not any("Retry-After" in line for line in lines)
    lines.clear()
    demand = rng.choice(["3600", "Fri, 31 Dec 9999 23:59:59 GMT", "9" * 5000, "2"])
    with RawServer({path: reply(rng.choice([429, 503]), Retry_After=demand) for path in images}) as server:
        urls = [server.url(path) for path in images]
        output = downloaded(folder / "closed", urls, outcome, settings, [server.host], lines.append)
        outcome.faults_reached += len(images.keys() & set(server.requests))
    given_up = {"download_http_429", "download_http_503", "download_rate_limited"}
    assert set(output["reason"]) <= given_up, output["reason"].to_list()
    outcome.silent_waits += not any("Retry-After" in line for line in lines)


def robots_texts(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """Endless, huge and senseless rules of strangers: rows end, and what is forbidden is not fetched."""
    image = picture(rng)
    junk = bytes(rng.randrange(256) for _ in range(5000))
    agents = b"".join(b"User-agent: a%d\n" % number for number in range(15_000))
    texts = {
        "robots_txt": [
            b"User-agent: *\nDisallow: /\n", b"\xef\xbb\xbfUser-agent: *\r\nDisallow: /*.jpg$\r\n",
            b"User-agent: CURATION_ASSETS\nDisallow: /a\n\nUser-agent: *\nAllow: /\n",
            agents + b"User-agent: *\n" + b"Disallow: /" + b"*x" * 1000 + b"\nDisallow: /a\n" * 5000,
        ],
        None: [
            junk, b"<!doctype html><p>Not here", b"", agents + b"Disallow: /\n", b"User-agent: *\nDisallow:\n",
            b"User-agent: *\nDisallow: /" + b"*a" * 2000 + b"b\n",
        ],
    }  # fmt: skip
    with ExitStack() as running:
        servers, expected = [], []
        for reason, bodies in texts.items():
            for body in bodies:
                answers = {"/robots.txt": reply(body=body), "/a.jpg": reply(body=image)}
                servers.append(running.enter_context(RawServer(answers)))
                expected.append(reason)
        endless = drip(b"HTTP/1.1 200 OK\r\n\r\nUser-agent: *\nDisallow: /\n", b"# more\n" * 100_000, 0.0)
        servers.append(running.enter_context(RawServer({"/robots.txt": endless, "/a.jpg": reply(body=image)})))
        expected.append("robots_txt")  # the first 500 KiB are read
        settings = DownloadSettings(timeout_seconds=GUARD_SECONDS, max_seconds=GUARD_SECONDS)
        urls, hosts = [one.url("/a.jpg") for one in servers], [one.host for one in servers]
        output = downloaded(folder, urls, outcome, settings, hosts)
        assert output["reason"].to_list() == expected, list(zip(output["message"], expected, strict=True))
        for server, reason in zip(servers, expected, strict=True):
            assert ("/a.jpg" in server.requests) == (reason is None), server.requests
            outcome.faults_reached += "/robots.txt" in server.requests


FAULTS = [
    Fault(
        "slow servers",
        "each row ends as download_timeout when its time is up; images of the same server are unharmed",
        slow_answers,
        full=20,
    ),
    Fault(
        "hostile URLs",
        f"{len(HOSTILE_URLS)} ways to write a private address, directly or by a redirect or a name: none is reached",
        hostile_urls,
        full=20,
    ),
    Fault(
        "servers that answer 429",
        "rows wait for as long as the server demands, say so, and fail where that is too long",
        refusing_server,
        full=20,
    ),
    Fault("strange robots.txt", "endless, huge and binary rules: obeyed where they forbid", robots_texts, full=10),
]
