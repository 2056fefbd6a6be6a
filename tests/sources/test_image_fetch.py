"""What becomes of a row: opt-outs, robots.txt, redirects, refusals, retries."""

import gzip
import hashlib
import io
import json
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image

from curation_assets.core.progress import LogLines
from curation_assets.core.settings import load_settings
from curation_assets.core.version import __version__
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.download.download import DownloadSettings, download_shard, image_fetcher
from curation_assets.sources.download.image_fetch import MAX_REFUSALS, ImageFetcher
from curation_assets.sources.download.opt_outs import header_signals
from curation_assets.sources.download.reasons import NotFetched, reason_of
from curation_assets.sources.shards import discover_shards, download, register_shard
from curation_assets.stores.url_safety import UrlRefused
from tests.support.raw_server import RawServer, Visit, reply

NO_SITE_FILES = {"obey_robots_txt": False, "obey_tdm_reservation": False}
WORDS = DownloadSettings().disallowed_header_directives


def fetcher_for(*servers: RawServer, note: Callable[[str], None] | None = None, **changed: Any) -> ImageFetcher:
    settings = DownloadSettings(**{"timeout_seconds": 60, "domain_requests_per_second": None, **changed})
    return image_fetcher(settings, tuple(server.host for server in servers), None, note)


def reason(fetcher: ImageFetcher, url: str) -> str | None:
    try:
        fetcher.fetch(url)
    except Exception as error:
        return reason_of("failed_to_download", str(error))
    return None


# -- opt-outs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "is_forbidden"),
    [
        ({"X-Robots-Tag": "noai"}, True),
        ({"x-robots-tag": "NoImageAI, nosnippet"}, True),
        ({"X-Robots-Tag": "none"}, True),
        ({"X-Robots-Tag": "noml"}, True),
        ({"X-Robots-Tag": "nosnippet, noarchive"}, False),
        ({"X-Robots-Tag": "all"}, False),
        ({"X-Robots-Tag": "img2dataset: noai"}, True),
        ({"X-Robots-Tag": "Curation_Assets: nosnippet, noindex"}, True),
        ({"X-Robots-Tag": "mybot: noml"}, True),
        ({"X-Robots-Tag": "googlebot: noindex"}, False),
        ({"X-Robots-Tag": "googlebot: nofollow, img2dataset: noai"}, True),
        ({"X-Robots-Tag": "unavailable_after: 25 Jun 2010 15:00:00 PST, noai"}, True),
        ({"X-Robots-Tag": "max-image-preview: none"}, False),
        ({"X-Robots-Tag": ""}, False),
        ({"TDM-Reservation": "1"}, True),
        ({"tdm-reservation": " 1 "}, True),
        ({"TDM-Reservation": "0"}, False),
        ({}, False),
    ],
)
def test_headers_that_forbid_the_use(headers: dict[str, str], is_forbidden: bool) -> None:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    agents = DownloadSettings(user_agent_token="MyBot").agents
    assert any(one.is_no for one in header_signals(message, words=WORDS, agents=agents)) == is_forbidden


def test_every_header_of_a_name_counts_and_each_rule_can_be_switched_off() -> None:
    headers = {"X-Robots-Tag": "noai", "TDM-Reservation": "1"}
    message = Message()
    message["X-Robots-Tag"] = "otherbot: noai"
    for name, value in headers.items():
        message[name] = value
    assert [str(one) for one in header_signals(message, words=WORDS, agents=())] == [
        "x-robots-tag noai (header)",
        "tdmrep 1 (header)",
    ]
    assert [str(one) for one in header_signals(message, words=(), agents=())] == ["tdmrep 1 (header)"]
    answer = reply(200, b"x", **{name.replace("-", "_"): value for name, value in headers.items()})
    with RawServer({"/a": answer}) as server:
        for settings, expected in (
            ({}, "opt_out"),
            ({"disallowed_header_directives": ()}, "opt_out"),
            ({"obey_tdm_reservation": False}, "opt_out"),
            ({"disallowed_header_directives": (), "obey_tdm_reservation": False}, None),
            ({"opt_outs": {"x-robots-tag": "record", "tdmrep": "ignore"}}, None),
            (
                {"opt_outs": {"tdmrep": "refuse"}, "disallowed_header_directives": (), "obey_tdm_reservation": False},
                None,
            ),
        ):
            assert reason(fetcher_for(server, **settings), server.url("/a")) == expected, settings


def test_opted_out_images_are_not_requested_twice() -> None:
    endless = b"HTTP/1.1 200 OK\r\nX-Robots-Tag: img2dataset: noai\r\n\r\n"

    def forbidden(visit: Visit) -> None:
        visit.send(endless)
        while True:
            visit.send(bytes(1 << 16))

    answers = {
        "/a": forbidden,
        "/b": reply(200, b"x", TDM_Reservation="1"),
        "/moved": reply(302, Location="/b", X_Robots_Tag="noindex"),
        "/removed": reply(404, X_Robots_Tag="noindex"),  # of the page that says so
    }
    with RawServer(answers) as server:
        fetcher = fetcher_for(server, retries=3)
        reasons = [reason(fetcher, server.url(path)) for path in ("/a", "/moved", "/removed")]
        assert reasons == ["opt_out", "opt_out", "download_http_404"]
        assert server.requests == ["/robots.txt", "/.well-known/tdmrep.json", "/a", "/moved", "/b", "/removed"]


# -- robots.txt -------------------------------------------------------------------------------------------------------


def test_robots_txt_is_obeyed_by_default_and_at_every_redirect() -> None:
    with (
        RawServer({"/robots.txt": reply(200, b"User-agent: *\nDisallow: /no\n"), "/no": reply(200, b"x")}) as closed,
        RawServer({"/moved": reply(302, Location=closed.url("/no"))}) as other,
    ):
        fetcher = fetcher_for(closed, other, retries=2)
        urls = [closed.url("/no"), other.url("/moved"), closed.url("/yes")]
        assert [reason(fetcher, url) for url in urls] == ["robots_txt", "robots_txt", "download_http_404"]
        assert reason(fetcher, closed.url("/open/../%2e/no")) == "robots_txt"
        assert closed.requests == ["/robots.txt", "/.well-known/tdmrep.json", "/yes"]
        careless = fetcher_for(closed, other, obey_robots_txt=False)
        assert [careless.fetch(url) for url in urls[:2]] == [b"x", b"x"]
        assert closed.requests.count("/robots.txt") == 1


def test_servers_of_ones_own_have_no_rules_and_no_limits() -> None:
    with RawServer({"/robots.txt": reply(200, b"User-agent: *\nDisallow: /\n"), "/a": reply(200, b"x")}) as server:
        slow = fetcher_for(connect_to={"scenes.test": server.host}, domain_requests_per_second=0.001)
        assert [slow.fetch("http://scenes.test/a") for _ in range(3)] == [b"x"] * 3
        assert "/robots.txt" not in server.requests


def test_the_user_agent_is_honest() -> None:
    assert DownloadSettings().user_agent == f"curation_assets/{__version__}"
    named = DownloadSettings(user_agent_token="MyBot", user_agent_contact="https://lab.example/bot")
    assert named.user_agent == f"curation_assets/{__version__} (MyBot; +https://lab.example/bot)"
    assert named.agents == ("mybot", "curation_assets", "img2dataset")
    for bad in ("a\r\nHost: x", "", "é", "a)", " a"):
        with pytest.raises(ValueError, match="user_agent_contact goes into a header"):
            DownloadSettings(user_agent_contact=bad)
    with RawServer({}) as server:
        reason(fetcher_for(server, user_agent_token="MyBot"), server.url("/a"))
    assert all(f"User-Agent: curation_assets/{__version__} (MyBot)\r\n" in head for head in server.heads)
    assert len(server.heads) == 3  # robots.txt and tdmrep.json first


# -- redirects and retries --------------------------------------------------------------------------------------------


def test_redirects_are_vetted_and_end() -> None:
    answers = {
        "/file": reply(302, Location="file:///etc/passwd"),
        "/private": reply(302, Location="http://10.0.0.1/"),
        "/port": reply(302, Location="http://127.0.0.1:1/"),
        "/loop": reply(301, Location="/loop"),
        "/chain": lambda visit: reply(302, Location=f"/chain?{len(visit.server.requests)}")(visit),
        "/moved": reply(308, Location="ok"),
        "/ok": reply(200, b"hello"),
    }
    with RawServer(answers) as server:
        fetcher = fetcher_for(server, **NO_SITE_FILES)
        assert fetcher.fetch(server.url("/moved")) == b"hello"
        refused = {"/file": "scheme_not_allowed", "/private": "private_address", "/port": "port_not_allowed"}
        for path, word in refused.items():
            with pytest.raises(UrlRefused, match=word):
                fetcher.fetch(server.url(path))
        server.requests.clear()
        assert [reason(fetcher, server.url(path)) for path in ("/loop", "/chain")] == ["download_redirect_loop"] * 2
        assert server.requests.count("/loop") == 1
        assert len(server.requests) == 1 + 11


def test_only_what_may_pass_is_tried_again() -> None:
    with RawServer({"/removed": reply(410), "/broken": reply(500), "/cut": lambda visit: None}) as server:
        fetcher = fetcher_for(server, retries=2, **NO_SITE_FILES)
        reasons = [reason(fetcher, server.url(path)) for path in ("/removed", "/broken", "/cut", "/missing")]
        assert reasons == [
            "download_http_410", "download_http_500", "download_connection_lost", "download_http_404",
        ]  # fmt: skip
        assert server.requests == ["/removed", *["/broken"] * 3, *["/cut"] * 3, "/missing"]


# -- 429 and 503 ------------------------------------------------------------------------------------------------------


def sometimes(refusals: int, answer: Callable[[Visit], None]) -> Callable[[Visit], None]:
    """An image after so many refusals."""

    def sent(visit: Visit) -> None:
        (answer if visit.server.requests.count(visit.path) <= refusals else reply(200, b"x"))(visit)

    return sent


@pytest.mark.slow
def test_a_server_that_wants_a_pause_gets_it() -> None:
    lines: list[str] = []
    with RawServer({"/a": sometimes(1, reply(429, Retry_After="4")), "/b": sometimes(2, reply(503))}) as server:
        # the waits are not part of the time of the image
        fetcher = fetcher_for(server, note=lines.append, **NO_SITE_FILES, retries=0, max_seconds=3)
        assert fetcher.fetch(server.url("/a")) == b"x"
        assert server.times[1] - server.times[0] >= 4
        assert lines == ["waits 4 s for 127.0.0.1 (Retry-After)"]
        assert fetcher.fetch(server.url("/b")) == b"x"
        first, second, third = server.times[2:]
        assert second - first >= 0.5
        assert third - second >= 1.0


def test_a_server_that_refuses_for_ever_ends_every_row(tmp_path: Path) -> None:
    lines: list[str] = []
    with RawServer({path: reply(429, Retry_After="7200") for path in ("/a", "/b", "/c")}) as server:
        rows = pl.DataFrame(
            {
                "sample_id": ["0" * 31 + digit for digit in "123"],
                "source_row": [0, 1, 2],
                "url": [server.url(path) for path in ("/a", "/b", "/c")],
                "caption": ["a caption"] * 3,
            }
        )
        output = download_shard(
            rows, tmp_path, "pool-000000", allow_hosts=(server.host,), note=lines.append,
            settings=DownloadSettings(threads=1, retries=3),
        )  # fmt: skip
    assert output["status"].to_list() == ["failed"] * 3
    assert output["reason"].to_list() == ["download_http_429", *["download_rate_limited"] * 2]
    assert server.requests == ["/robots.txt", "/.well-known/tdmrep.json", "/a"]
    assert len(lines) == 1
    assert lines[0].startswith("127.0.0.1 wants no request for 7200 s (Retry-After): its rows fail")


def test_domains_take_turns_and_rows_keep_their_images(tmp_path: Path) -> None:
    with RawServer({}) as server:
        port = server.host.rsplit(":", 1)[1]
        paths = ["/1", "/2", "/3"]
        urls = [*(server.url(path) for path in paths), f"http://localhost:{port}/other", server.url("/4")]
        rows = pl.DataFrame(
            {
                "sample_id": [f"{number:032x}" for number in range(5)],
                "source_row": list(range(5)),
                "url": urls,
                "caption": ["a caption"] * 5,
            }
        )
        output = download_shard(
            rows, tmp_path, "pool-000000", allow_hosts=(server.host, f"localhost:{port}"),
            settings=DownloadSettings(threads=1, **NO_SITE_FILES),
        )  # fmt: skip
    assert server.requests == ["/1", "/other", "/2", "/3", "/4"]
    assert output["sample_id"].to_list() == rows["sample_id"].to_list()
    assert output["reason"].to_list() == ["download_http_404"] * 5


def test_urls_with_blanks_and_coded_bodies_become_images(tmp_path: Path) -> None:
    """robots.txt, redirects and the request see the URL as browsers send it; bytes are decoded before they count."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(buffer, "JPEG")
    picture = buffer.getvalue()
    answers = {
        "/robots.txt": reply(body=gzip.compress(b"User-agent: *\nDisallow: /no%20way/\n"), Content_Encoding="gzip"),
        "/a%20b/%C3%A4.jpg": reply(body=gzip.compress(picture), Content_Encoding="gzip"),
        "/from": reply(302, Location="/a b/ä.jpg"),
        "/br.jpg": reply(body=b"?", Content_Encoding="br"),
    }
    with RawServer(answers) as server:
        rows = pl.DataFrame(
            {
                "sample_id": [f"{number:032x}" for number in range(5)],
                "source_row": list(range(5)),
                "url": [server.url(path) for path in ("/a b/ä.jpg", "/from", "/no way/1.jpg", "/br.jpg", "/a\\b")],
                "caption": ["a caption"] * 5,
            }
        )
        output = download_shard(rows, tmp_path, "pool-000000", allow_hosts=(server.host,), settings=DownloadSettings())
    assert output["reason"].to_list() == [
        None, None, "robots_txt", "image_content_encoding", "url_refused:malformed"
    ]  # fmt: skip
    assert output["original_sha256"].to_list()[:2] == [hashlib.sha256(picture).hexdigest()] * 2


def test_one_url_that_is_always_busy_costs_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with RawServer({"/a": reply(503), "/ok": reply(200, b"x")}) as server:
        fetcher = fetcher_for(server, retries=3, **NO_SITE_FILES)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            fetcher.fetch(server.url("/a"))
        assert server.requests == ["/a"] * MAX_REFUSALS
        assert fetcher.fetch(server.url("/ok")) == b"x"


# -- rows -------------------------------------------------------------------------------------------------------------


def test_reasons_of_our_own() -> None:
    for word in ("opt_out", "robots_txt", "robots_txt_unreachable", "download_rate_limited", "download_redirect_loop"):
        assert reason_of("failed_to_download", str(NotFetched(word, "HTTP Error 404, timed out"))) == word


def test_what_may_change_the_images_is_in_the_manifest_and_the_pace_is_not() -> None:
    default = DownloadSettings().config()
    assert default["obey_robots_txt"] is True
    assert DownloadSettings(obey_robots_txt=False).config() != default
    assert DownloadSettings(obey_tdm_reservation=False).config() != default
    assert DownloadSettings(domain_requests_per_second=1, domain_connections=1, threads=1).config() == default


def test_a_pool_keeps_robots_txt_in_the_home_and_logs_what_it_waits_for(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    lines: list[str] = []
    with RawServer({"/busy": reply(429, Retry_After="7200")}) as server:
        server.answers["/robots.txt"] = reply(200, b"User-agent: *\nDisallow: /private\n")
        urls = [server.url(path) for path in ("/private/1", "/busy")]
        pl.DataFrame({"url": urls, "caption": ["one", "two"]}).write_csv(tmp_path / "urls.csv")
        pool = add_pool(settings, "mine", tmp_path / "urls.csv", allow_hosts=(server.host,))
        (shard,) = discover_shards(pool, settings)
        registered = register_shard(pool, shard, settings)
        downloads = download(pool, shard, registered, settings, note=LogLines(lines.append).note)
    assert downloads["reason"].to_list() == ["robots_txt", "download_http_429"]
    (kept,) = (settings.home / "robots_txt").glob("*.json")
    assert json.loads(kept.read_text())["origin"] == server.url("")
    assert [line.split(" wants")[0] for line in lines] == ["127.0.0.1"]
