"""Opt-outs after the download: a real server changes its mind, and a person confirms what was found."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.operations.opt_out_checks import check_opt_outs, proposed_opt_outs
from curation_assets.sources.declaration import add_pool, load_pool, save_pool
from curation_assets.stores.denylist import Denylist
from tests.support.command import curate
from tests.support.lineage_pools import jpeg
from tests.support.marked_images import jpeg_with_xmp, xmp
from tests.support.raw_server import RawServer, reply

COUNT = 6


def downloaded_pool(home: Path, server: RawServer, **options: object) -> PoolContext:
    """A table of URLs whose images were all downloaded."""
    source = home / "urls.parquet"
    home.mkdir(exist_ok=True)
    captions = [f"a photo of thing {number}" for number in range(COUNT)]
    pl.DataFrame({"url": [server.url(f"/{number}.jpg") for number in range(COUNT)], "caption": captions}).write_parquet(
        source
    )
    settings = load_settings(home, "embedded")
    add_pool(settings, "web", source, allow_hosts=(server.host,), options=options)
    ctx = PoolContext.open(settings, "web")
    tables = tables_of(ctx)
    for name in ("raw/registered_shards", "raw/downloads", "raw/samples"):
        materialise_table(ctx, tables[name], ctx.shards()[0], tables=tables)
    assert ctx.store.scan("raw/samples").collect()["status"].to_list() == ["kept"] * COUNT
    return ctx


@pytest.fixture
def server() -> RawServer:
    images = {f"/{number}.jpg": reply(200, jpeg(number)) for number in range(COUNT)}
    return RawServer({"/robots.txt": reply(200, b"User-agent: *\nAllow: /\n"), **images})


def forget_robots(ctx: PoolContext) -> None:
    """A day later."""
    for path in (ctx.settings.home / "robots_txt").glob("*.json"):
        path.unlink()


def test_headers_and_robots_txt_that_changed_are_proposed_and_one_that_changed_back_is_not(
    tmp_path: Path, server: RawServer
) -> None:
    with server:
        ctx = downloaded_pool(tmp_path, server)
        assert check_opt_outs(ctx).proposed == []
        server.answers["/1.jpg"] = reply(200, b"never read", X_Robots_Tag="noai")
        server.answers["/robots.txt"] = reply(200, b"User-agent: *\nDisallow: /4.jpg\n")
        server.answers["/5.jpg"] = reply(404)
        forget_robots(ctx)
        check = check_opt_outs(ctx)
        assert sorted((item.url, item.reason) for item in check.proposed) == [
            (server.url("/1.jpg"), "opt_out"),
            (server.url("/4.jpg"), "robots_txt"),
        ]
        assert (check.looked_at, check.unanswered) == (COUNT, {"download_http_404": 1})
        assert set(check.proposed) == set(proposed_opt_outs(ctx))
        server.answers["/1.jpg"] = reply(200, b"")
        check = check_opt_outs(ctx)
        assert (check.withdrawn, [item.reason for item in check.proposed]) == (1, ["robots_txt"])


def test_a_mind_that_changed_in_any_place_is_found_and_named(tmp_path: Path, server: RawServer) -> None:
    """robots.txt and tdmrep.json are read anew, whatever the home keeps of today."""
    with server:
        ctx = downloaded_pool(tmp_path, server)
        assert check_opt_outs(ctx).proposed == []
        marked = jpeg_with_xmp(xmp("DMI-PROHIBITED-AIMLTRAINING"))
        server.answers["/robots.txt"] = reply(
            200,
            b"User-agent: *\nContent-Usage: /0 train-ai=n\nContent-Signal: /1 ai-train=no\nLicense: https://l.example\n",
        )
        server.answers["/.well-known/tdmrep.json"] = reply(200, b'[{"location": "/2", "tdm-reservation": 1}]')
        server.answers["/3.jpg"] = reply(200, jpeg(3), Content_Usage="search=y, train-ai=n")
        server.answers["/4.jpg"] = reply(200, marked)
        check = check_opt_outs(ctx)
        robots, tdmrep = server.url("/robots.txt"), server.url("/.well-known/tdmrep.json")
        assert {item.url.rpartition("/")[2]: item.message.partition("forbidden by ")[2] for item in check.proposed} == {
            "0.jpg": f"content-usage train-ai=n ({robots})",
            "1.jpg": f"content-signal ai-train=no ({robots})",
            "2.jpg": f"tdmrep 1 ({tdmrep})",
            "3.jpg": "content-usage search=y, train-ai=n (header)",
            "4.jpg": "image DMI-PROHIBITED-AIMLTRAINING (XMP)",
        }
        assert {item.reason for item in check.proposed} == {"opt_out"}
        pool = load_pool(ctx.settings, "web")
        recording = dict.fromkeys(pool.download.treatments, "record")
        save_pool(ctx.settings, replace(pool, download=replace(pool.download, opt_outs=recording)))
        check = check_opt_outs(PoolContext.open(ctx.settings, "web"))
        assert (check.proposed, check.withdrawn) == ([], 5), "the pool's policy decides at night, too"


def test_nights_take_turns_through_the_pool(tmp_path: Path, server: RawServer) -> None:
    with server:
        ctx = downloaded_pool(tmp_path, server, opt_out_checks=4)
        server.requests.clear()
        assert [check_opt_outs(ctx).looked_at for _ in range(3)] == [4, 4, 4]
        asked = [path for path in server.requests if path.endswith(".jpg")]
    assert len(asked) == 12
    assert all(asked.count(path) == 2 for path in asked), "two rounds through six images"


def test_the_command_shows_and_a_person_confirms(tmp_path: Path, server: RawServer) -> None:
    home = ["--home", str(tmp_path), "--profile", "embedded"]
    with server:
        ctx = downloaded_pool(tmp_path, server)
        server.answers["/2.jpg"] = reply(200, b"", TDM_Reservation="1")
        shown = curate("verify", "web", "--only", "opt-outs", *home)
        assert shown.exit_code == 1, shown.output
        assert "6 images looked at, 1 may not be used now" in shown.stdout
        assert f"{server.url('/2.jpg')} (sample " in shown.stderr
        assert "curate takedown add --proposed web" in shown.stderr
        confirmed = curate("takedown", "add", "--proposed", "web", *home[:2])
        assert confirmed.exit_code == 0, confirmed.output
        assert "2 added" in confirmed.stdout  # its URL and its id
        denylist = Denylist.load(tmp_path)
        assert denylist.has("url", server.url("/2.jpg"))
        assert proposed_opt_outs(ctx) == []
        server.requests.clear()
        assert check_opt_outs(ctx).proposed == [], "what is denied is not proposed again"
    nothing = curate("takedown", "add", "--proposed", "web", *home[:2])
    assert "no opt-outs are proposed of web" in nothing.stderr


def test_pools_that_downloaded_nothing_ask_nobody(tmp_path: Path, server: RawServer) -> None:
    with server:
        ctx = downloaded_pool(tmp_path, server)
        pool = load_pool(ctx.settings, "web")
        save_pool(ctx.settings, replace(pool, options=replace(pool.options, opt_out_checks=0)))
        server.requests.clear()
        shown = curate("verify", "web", "--only", "opt-outs", home=tmp_path)
        assert shown.exit_code == 0, shown.output
        assert "its option opt_out_checks is 0" in shown.stdout
        assert server.requests == []
