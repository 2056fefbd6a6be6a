"""Shards that are downloaded at once: none waits for another's slow rows, limits hold for all, a stop ends all."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from curation_assets.sources.download.download import DownloadSettings, download_shard
from curation_assets.sources.download.fetch_shard import DownloadStoppedError
from tests.support.evaluation_folders import jpeg
from tests.support.raw_server import Answer, RawServer, Visit, reply, silence

PATIENT = DownloadSettings(
    timeout_seconds=600, max_seconds=600, threads=3, obey_robots_txt=False, domain_requests_per_second=None
)


def rows_of(server: RawServer, paths: Sequence[str], first: int = 0) -> pl.DataFrame:
    """Requested rows, one per path."""
    numbers = range(first, first + len(paths))
    return pl.DataFrame(
        {
            "sample_id": [f"{number:032x}" for number in numbers],
            "source_row": list(numbers),
            "url": [server.url(path) for path in paths],
            "caption": [f"a picture of {path}" for path in paths],
        }
    )


def image(number: int) -> Answer:
    return reply(200, jpeg(number), Content_Type="image/jpeg")


def until(condition: threading.Event) -> Answer:
    """An image, once somebody says so."""

    def answer(visit: Visit) -> None:
        condition.wait(600)
        image(0)(visit)

    return answer


class Crowd:
    """Answers with an image after a moment, and knows how many it answered at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, visit: Visit) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        visit.wait(0.03)
        with self.lock:
            self.now -= 1
        image(1)(visit)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_a_shard_is_done_while_a_row_of_another_still_waits(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    released = threading.Event()
    paths = [f"/{number}" for number in range(6)]
    answers = {path: image(number) for number, path in enumerate(paths)}
    with RawServer({**answers, "/held": until(released)}) as server:
        shards = {"toy-000000": rows_of(server, ["/held", *paths[:3]]), "toy-000001": rows_of(server, paths[3:], 4)}

        def download(key: str, out: str) -> pl.DataFrame:
            return download_shard(shards[key], tmp_path / out, key, settings=PATIENT, allow_hosts=(server.host,))

        slow = executor.submit(download, "toy-000000", "at_once")
        quick = download("toy-000001", "at_once")
        assert quick["status"].to_list() == ["kept"] * 3
        assert not slow.done()
        released.set()
        found = {"toy-000000": slow.result(), "toy-000001": quick}
        for key, frame in found.items():
            assert download(key, "alone").drop("fetched_at").equals(frame.drop("fetched_at"))
            assert frame["status"].to_list() == ["kept"] * frame.height
            tars = [next((tmp_path / out / key).glob("*.tar")) for out in ("at_once", "alone")]
            members = pl.read_parquet(tars[0].with_suffix(".parquet")).sort("uid")["sha256"].to_list()
            assert members == pl.read_parquet(tars[1].with_suffix(".parquet")).sort("uid")["sha256"].to_list()
        requests = len(server.requests)
        assert download("toy-000001", "at_once").equals(quick)  # complete: no request is made
        assert len(server.requests) == requests


@pytest.mark.parametrize(("connections", "most"), [(8, 3), (2, 2)])
def test_limits_hold_for_all_shards_under_way(
    tmp_path: Path, executor: ThreadPoolExecutor, connections: int, most: int
) -> None:
    settings = DownloadSettings(
        threads=3, domain_connections=connections, domain_requests_per_second=None, obey_robots_txt=False
    )
    crowd = Crowd()
    paths = [f"/{number}" for number in range(20)]
    with RawServer(dict.fromkeys(paths, crowd)) as server:

        def download(number: int) -> pl.DataFrame:
            rows = rows_of(server, paths, 20 * number)
            key = f"toy-{number:06d}"
            return download_shard(rows, tmp_path / "out", key, settings=settings, allow_hosts=(server.host,))

        for frame in executor.map(download, range(2)):
            assert frame["status"].to_list() == ["kept"] * 20
    assert crowd.most <= most


def test_a_stop_ends_all_of_them_whatever_they_wait_for(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    """Two servers' worth of rows that never end, and more rows than fit in memory."""
    stopped = threading.Event()
    with RawServer({"/silent": silence}) as server:

        def download(number: int) -> None:
            rows = rows_of(server, ["/silent"] * 40, 40 * number)
            with pytest.raises(DownloadStoppedError):
                download_shard(
                    rows, tmp_path / "out", f"toy-{number:06d}", settings=PATIENT, allow_hosts=(server.host,),
                    is_stopped=stopped,
                )  # fmt: skip

        jobs = [executor.submit(download, number) for number in range(2)]
        while len(server.requests) < 3:
            time.sleep(0.01)
        stopped.set()
        for job in jobs:
            job.result(60)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_what_decoders_print_is_silenced_and_nothing_else(tmp_path: Path) -> None:
    """Two threads that silence and restore standard error in turn left it shut for good."""
    script = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.sources.test_downloads_at_once import PATIENT, rows_of
from tests.support.evaluation_folders import jpeg
from tests.support.raw_server import RawServer, reply
from curation_assets.sources.download.download import download_shard
data = jpeg(1)
odd = data.replace(b"\\xff\\xda", b"\\x00\\x11\\x22\\xff\\xda")  # libjpeg: extraneous bytes before marker
paths = [f"/{number}" for number in range(200)]
with RawServer(dict.fromkeys(paths, reply(200, odd))) as server:
    def download(number):
        rows = rows_of(server, paths, 200 * number)
        out = download_shard(rows, Path(sys.argv[1]), f"toy-{number:06d}", settings=PATIENT, allow_hosts=(server.host,))
        return out["status"].to_list()
    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(download, range(2))) == [["kept"] * 200] * 2
os.write(1, b"out")
os.write(2, b"error")
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == (b"out", b"error", 0)
