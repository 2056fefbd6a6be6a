"""The file that `curate explore` shows, and the real viewer over it."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.cli import explore as command
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.takedown import begin_takedown
from curation_assets.outputs import explore
from curation_assets.stores.denylist import add_to_denylist
from tests.support.browser import open_browser
from tests.support.command import curate
from tests.support.lineage_pools import SIGNALS, bring_up_to_date, finished_photos, webdataset_pool
from tests.support.paths import REPOSITORY

needs_viewer = pytest.mark.skipif(
    importlib.util.find_spec("embedding_atlas") is None, reason="the extra 'explore' (embedding-atlas) is not installed"
)


@pytest.fixture
def ctx(tmp_path: Path) -> PoolContext:
    return finished_photos(tmp_path / "home", shards=3)


def test_every_sample_has_its_picture_values_verdicts_and_place(ctx: PoolContext) -> None:
    made = explore.prepare(ctx)
    frame = pl.read_parquet(made.path)
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    assert (made.rows, made.judged) == (22, 22)  # of 24: an empty caption and a broken image
    assert made.placed_by == "sentence embeddings of captions"
    assert made.without_picture == {}
    assert frame["sample_id"].to_list() == sorted(samples["sample_id"])
    shown = {row["sample_id"]: row for row in frame.to_dicts()}
    for row in samples.to_dicts():
        assert shown[row["sample_id"]]["caption"] == row["caption"]
        assert shown[row["sample_id"]]["domain"] == row["url"].split("/")[2]
    for name in SIGNALS:
        for row in ctx.store.scan(f"signals/{name}").collect().to_dicts():
            if row["sample_id"] in shown:
                assert shown[row["sample_id"]][name] == row["value"]
    for policy in ("icc", "sieve_clip"):
        for row in ctx.store.scan(f"filtered/{policy}").collect().to_dicts():
            if row["sample_id"] in shown:
                mine = shown[row["sample_id"]]
                assert (mine[f"{policy}_verdict"], mine[f"{policy}_reason"]) == (row["verdict"], row["reason"])
    assert {row["icc_verdict"] for row in shown.values()} >= {"kept", "dropped"}
    assert frame["fused_sieve_clip"].null_count() < frame.height
    picture = frame["image"][0]
    assert picture["path"].endswith(".jpg")
    assert picture["bytes"][:3] == b"\xff\xd8\xff"
    assert np.isfinite(frame.select("x", "y").to_numpy()).all()
    assert frame.select("x", "y").n_unique() > 1


def test_pictures_are_small_and_places_come_from_the_image_embeddings_of_the_pool(ctx: PoolContext) -> None:
    for shard in ctx.store.partitions("raw/samples"):
        samples = ctx.store.read("raw/samples", shard)
        vectors = [None if number == 4 else [float(number % 2), 1.0, number / 1000] for number in samples["source_row"]]
        frame = samples.select("sample_id", "source_row").with_columns(
            pl.Series("image_embedding", vectors, dtype=pl.List(pl.Float32)), pl.lit(None, pl.String).alias("reason")
        )
        ctx.store.write("signals/image_embedding", frame, shard, code_version="1")
    made = explore.prepare(ctx)
    frame = pl.read_parquet(made.path)
    assert made.placed_by == "image embeddings"
    assert frame.filter(pl.col("x").is_null()).height == 3  # one of each shard
    assert frame["image"].null_count() == 0


def test_a_tar_that_is_missing_or_has_changed_leaves_its_samples_without_picture(ctx: PoolContext) -> None:
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    tars = samples["tar"].unique().sort()[:2]
    one, other = (ctx.store.root / name for name in tars)
    one.unlink()
    other.write_bytes(other.read_bytes()[:1024])  # its first member, cut off
    made = explore.prepare(ctx)
    lost = samples["tar"].is_in(tars.implode()).sum()
    assert sum(made.without_picture.values()) == lost > 0
    assert "its tar is missing or has changed" in made.without_picture
    assert pl.read_parquet(made.path)["image"].null_count() == lost


def test_a_large_image_is_scaled_down() -> None:
    import io

    from curation_assets.outputs.thumbnails import jpeg_thumbnail

    small = Image.open(io.BytesIO(jpeg_thumbnail(Image.new("RGB", (1000, 500)), explore.THUMBNAIL_PX)))
    assert small.size == (128, 64)


def test_limit_draws_the_same_samples_again_and_an_unchanged_pool_is_not_prepared_twice(ctx: PoolContext) -> None:
    whole = pl.read_parquet(explore.prepare(ctx).path)["sample_id"].to_list()
    first = explore.prepare(ctx, limit=7)
    drawn = pl.read_parquet(first.path)
    assert drawn.height == 7
    assert set(drawn["sample_id"]) < set(whole)
    assert not first.is_reused
    again = explore.prepare(ctx, limit=7)
    assert again.is_reused
    assert (again.rows, again.judged, again.placed_by) == (first.rows, first.judged, first.placed_by)
    first.path.unlink()
    anew = explore.prepare(ctx, limit=7)
    assert pl.read_parquet(anew.path).equals(drawn)


def test_who_is_on_the_denylist_does_not_appear_and_a_takedown_deletes_the_file(ctx: PoolContext) -> None:
    made = explore.prepare(ctx)
    denied = pl.read_parquet(made.path).row(5, named=True)
    add_to_denylist(ctx.settings.home, [("uid", denied["sample_id"])])
    after = explore.prepare(ctx)
    assert not after.is_reused
    assert after.rows == made.rows - 1
    assert denied["image"]["bytes"] not in after.path.read_bytes()
    assert denied["sample_id"] not in pl.read_parquet(after.path)["sample_id"].to_list()
    (after.path.parent / "viewer.log").write_text(denied["caption"])
    begin_takedown(ctx, tables_of(ctx))
    assert not after.path.parent.exists()


def test_what_cannot_be_shown_is_answered_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = webdataset_pool(tmp_path / "home", shards=1)
    ctx = PoolContext.open(settings, "photos")
    with pytest.raises(ValueError, match="has not run yet; `curate run photos` first"):
        explore.prepare(ctx)
    ctx = bring_up_to_date(settings)
    with pytest.raises(ValueError, match="at least 1"):
        explore.prepare(ctx, limit=0)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = curate("explore", "photos", home=tmp_path / "home")
    assert result.exit_code == 1
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (viewer,) = project["optional-dependencies"]["explore"]
    assert f"pip install -c /dev/stdin '{viewer}'" in result.output.replace("\n", "")


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < command.free_port(port) <= port + command.TRIED_PORTS


def test_a_viewer_that_does_not_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('no such column')"]
    viewer = command.viewer(program, tmp_path / "samples.parquet", 5999)
    with pytest.raises(command.ViewerError, match="ended with status 1: no such column"), viewer:
        pass


OPEN_TO_ALL = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_a_viewer_that_would_answer_other_sites_is_not_left_running(tmp_path: Path) -> None:
    port = command.free_port(5900)
    viewer = command.viewer([sys.executable, "-c", OPEN_TO_ALL], tmp_path / "samples.parquet", port)
    with pytest.raises(command.ViewerError, match="would answer pages of other sites"), viewer:
        pass
    assert command.free_port(port) == port


@pytest.mark.infra
@needs_viewer
def test_the_real_viewer_shows_samples_to_this_machine_alone_and_ends_with_ctrl_c(
    ctx: PoolContext, tmp_path: Path
) -> None:
    home = ctx.settings.home
    process = subprocess.Popen(
        [sys.executable, "-c", "from curation_assets.cli import main; main()", "explore", "photos", "--no-open",
         "--port", "5700", "--home", str(home)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:57"), process.communicate()[1]
        with socket.socket() as outside:
            outside.settimeout(2)
            assert outside.connect_ex((_own_address(), int(url.split(":")[2].strip("/")))) != 0
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
            for path, body in (("data/dataset.parquet", None), ("data/cache/x", b"{}")):
                with pytest.raises(urllib.error.HTTPError, match=r"40[03]"):
                    urllib.request.urlopen(urllib.request.Request(f"{url}{path}", body, headers))
        with open_browser(tmp_path / "profile") as page:
            page.open(url, 1280)
            page.wait_for("document.body.innerText.includes('22 points')")
            page.wait_for("document.body.innerText.includes('icc_verdict')")
            page.wait_for("[...document.images].some((one) => one.naturalWidth === 32)")  # in the table
            page.screenshot(tmp_path / "viewer.png")
            assert [one for one in page.requests if not one.startswith((url, "data:", "blob:"))] == []
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "viewer stopped" in errors
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=30)


def _own_address() -> str:
    """An address of this machine that is not loopback; loopback's own neighbour where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])
