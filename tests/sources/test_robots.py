"""robots.txt (RFC 9309): whose rules hold, what an absent or unreachable file means, how long one is kept."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp
from curation_assets.sources.download.reasons import NotFetched
from curation_assets.sources.download.robots import MAX_BYTES, Rules
from curation_assets.sources.download.site_files import MAX_AGE_SECONDS, SiteFiles
from tests.support.raw_server import RawServer, Visit, reply, silence

AGENTS = ("mybot", "curation_assets", "img2dataset")


def allowed(text: str, path: str, agents: Sequence[str] = AGENTS) -> bool:
    return Rules(text, agents).allow(f"http://x.example{path}")


def test_the_longest_match_decides_and_wildcards_hold() -> None:
    text = "User-agent: *\nDisallow: /a\nAllow: /a/open\nDisallow: /*.png$\nDisallow: /q?x=\n"
    paths = ["/", "/a", "/ab.jpg", "/a/open/1.jpg", "/b/c.png", "/b/c.png?x", "/q?x=1", "/%61b", "/B"]
    assert [allowed(text, path) for path in paths] == [True, False, False, True, False, True, False, False, True]
    assert allowed("User-agent: *\nDisallow: /p\nAllow: /p\n", "/p")  # equal lengths: allow
    assert allowed("Disallow: /\n", "/a")  # a rule of nobody
    assert allowed("", "/a")
    assert allowed("<html>User-agent", "/a")


def test_the_group_of_our_own_name_goes_before_img2dataset_and_everybody() -> None:
    everybody, converter = "User-agent: *\nDisallow: /\n\n", "User-agent: IMG2Dataset\nDisallow: /img\n\n"
    ours = "User-agent: other\nUser-agent: Curation_Assets\nDisallow: /ours\n\n"
    assert not allowed(everybody, "/x")
    assert [allowed(everybody + converter, path) for path in ("/x", "/img")] == [True, False]
    assert [allowed(everybody + converter + ours, path) for path in ("/x", "/img", "/ours")] == [True, True, False]
    assert allowed(everybody + ours + "user agent MyBot\nAllow: /\n", "/ours")
    # a group of others forbids nothing, nor one whose name is only the beginning of ours
    assert allowed("User-agent: other\nUser-agent: img\nUser-agent: curation\nDisallow: /\n", "/x")


class Robots:
    """The robots.txt of servers, read with a clock that stands still."""

    def __init__(self, folder: Path | None, *servers: RawServer, now: float = 1e9) -> None:
        self.now = now
        http = GuardedHttp([server.host for server in servers], user_agent="test/1")
        self.files = SiteFiles(
            http,
            "/robots.txt",
            partial(Rules, agents=AGENTS),
            folder,
            max_bytes=MAX_BYTES,
            max_seconds=60,
            clock=lambda: self.now,
        )

    def reason(self, url: str, seconds: float = 60) -> str | None:
        try:
            rules, _ = self.files.rules_for(url, Deadline(seconds))
        except NotFetched as refusal:
            return refusal.reason
        return None if rules.allow(url) else "robots_txt"


def test_what_the_answer_to_robots_txt_means() -> None:
    forbidding = b"User-agent: *\nDisallow: /\n"
    for answer, reason in (
        (reply(200, forbidding), "robots_txt"),
        (reply(404, forbidding), None),
        (reply(403, forbidding), None),
        (reply(304), None),
        (reply(500, b""), "robots_txt_unreachable"),
        (reply(503, b""), "robots_txt_unreachable"),
        (reply(429, b""), "robots_txt_unreachable"),
        (reply(200, b"#" * MAX_BYTES + forbidding), None),  # beyond 500 KiB
        (reply(200, b"#" * (MAX_BYTES - 100) + b"\n" + forbidding), "robots_txt"),
    ):
        with RawServer({"/robots.txt": answer}) as server:
            robots = Robots(None, server)
            assert robots.reason(server.url("/a.jpg")) == reason
            assert [robots.reason(server.url(path)) for path in ("/b.jpg", "/c.jpg")] == [reason, reason]
            assert server.requests == ["/robots.txt"] * (2 if reason == "robots_txt_unreachable" else 1)


def test_five_redirects_are_followed_to_any_public_place() -> None:
    def chain(length: int) -> dict[str, Any]:
        paths = ["/robots.txt", *(f"/{number}" for number in range(length))]
        moved = {begin: reply(301, Location=end) for begin, end in pairwise(paths)}
        return moved | {paths[-1]: reply(200, b"User-agent: *\nDisallow: /\n")}

    for length, reason in ((5, "robots_txt"), (6, None)):
        with RawServer(chain(length)) as server:
            assert Robots(None, server).reason(server.url("/a.jpg")) == reason
    away = {"/robots.txt": reply(301, Location="http://10.0.0.1/robots.txt")}
    with RawServer(away) as server, pytest.raises(ValueError, match="private_address"):
        Robots(None, server).reason(server.url("/a.jpg"))


def test_rules_are_kept_for_a_day_and_longer_where_the_server_is_down(tmp_path: Path) -> None:
    with RawServer({"/robots.txt": reply(200, b"User-agent: *\nDisallow: /a\n")}) as server:
        first = Robots(tmp_path / "robots", server)
        assert [first.reason(server.url(path)) for path in ("/a", "/b")] == ["robots_txt", None]
        again = Robots(tmp_path / "robots", server, now=1e9 + MAX_AGE_SECONDS - 1)
        assert [again.reason(server.url(path)) for path in ("/a", "/b")] == ["robots_txt", None]
        assert len(server.requests) == 1
        for now in (1e9 + MAX_AGE_SECONDS + 1, 1e9):  # older than a day; younger than now, as the clock was set back
            assert Robots(tmp_path / "robots", server, now=now).reason(server.url("/b")) is None
        assert len(server.requests) == 3
        server.answers["/robots.txt"] = reply(500)
        down = Robots(tmp_path / "robots", server, now=1e9 + 2 * MAX_AGE_SECONDS)
        assert [down.reason(server.url(path)) for path in ("/a", "/b")] == ["robots_txt", None]
        (path,) = (tmp_path / "robots").iterdir()
        path.write_text(path.read_text()[:-9])  # damaged: as if it were not there
        assert Robots(tmp_path / "robots", server).reason(server.url("/b")) == "robots_txt_unreachable"


def test_one_fetch_serves_all_threads_and_a_slow_one_holds_none_for_ever() -> None:
    hold = threading.Event()

    def slowly(visit: Visit) -> None:
        hold.wait(60)
        reply(200, b"User-agent: *\nDisallow: /a\n")(visit)

    with RawServer({"/robots.txt": slowly}) as server:
        robots, reasons = Robots(None, server), []
        threads = [threading.Thread(target=lambda: reasons.append(robots.reason(server.url("/a")))) for _ in range(8)]
        for thread in threads:
            thread.start()
        while not server.requests:
            time.sleep(0.01)
        with pytest.raises(TimeoutError, match=r"robots\.txt not complete"):  # while another thread fetches
            robots.reason(server.url("/a"), seconds=0.05)
        hold.set()
        for thread in threads:
            thread.join(60)
        assert reasons == ["robots_txt"] * 8
        assert len(server.requests) == 1


def test_a_fetch_with_less_than_its_time_decides_nothing_for_others() -> None:
    with RawServer({"/robots.txt": silence}) as server:
        robots = Robots(None, server)
        with pytest.raises(TimeoutError):
            robots.reason(server.url("/a"), seconds=0.2)
        server.answers["/robots.txt"] = reply(404)
        assert robots.reason(server.url("/a")) is None
