"""Failed rows once more: only they are fetched and computed again, whatever comes between."""

import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs import retry as defs_retry
from curation_assets.defs.launch import run_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Needs, Table
from curation_assets.operations import retry
from curation_assets.operations.retry import failed_rows, is_meant, reason_patterns, recompute_rows
from curation_assets.scoring.batches import BrokenEngineError
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.download import download
from curation_assets.sources.download.download import DownloadSettings, download_shard, request_retry
from curation_assets.stores import atomic
from curation_assets.stores.denylist import Denylist, add_to_denylist
from curation_assets.stores.images import TarIndex
from curation_assets.stores.shard_store import ShardStore
from tests.support.command import curate
from tests.support.lineage_pools import jpeg, webdataset_pool

SHARD = "mine-000000"
RAW = ("raw/registered_shards", "raw/downloads", "raw/samples")


class Server(ThreadingHTTPServer):
    """Answers each path with the next of its statuses, 200 with a picture; the last one stays."""

    daemon_threads = True

    def __init__(self, answers: dict[str, list[int]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.requests: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def download(self) -> DownloadSettings:
        return DownloadSettings(retries=0, threads=2, connect_to={"images.example": f"127.0.0.1:{self.server_port}"})


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests[self.path] += 1
        listed = self.server.answers.get(self.path, [404])
        status = listed.pop(0) if len(listed) > 1 else listed[0]
        body = jpeg(int(self.path.strip("/.jpg"))) if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


#: 0 and 3 are there, 1 and 4 come at the second request, 2 never, 5 answers 500 for ever.
ANSWERS = {0: [200], 1: [503, 200], 2: [404], 3: [200], 4: [500, 200], 5: [500]}


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server({f"/{number}.jpg": list(statuses) for number, statuses in ANSWERS.items()})
    yield running
    running.shutdown()
    running.server_close()


def urls() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": [f"{number:032x}" for number in ANSWERS],
            "source_row": list(ANSWERS),
            "url": [f"http://images.example/{number}.jpg" for number in ANSWERS],
            "caption": [f"thing {number}" for number in ANSWERS],
        }
    )


def images(folder: Path) -> dict[str, bytes]:
    index = TarIndex(folder / "000000.tar")
    return {name: index.read(name) for name in index.members}


# -- downloads --------------------------------------------------------------------------------------------------------


def test_only_failed_rows_are_fetched_again_and_all_other_images_stay(tmp_path: Path, server: Server) -> None:
    fetch = partial(download_shard, shard_key=SHARD, settings=server.download)
    rows, folder = urls(), tmp_path / SHARD
    first = fetch(rows, tmp_path)
    assert (
        first["reason"].to_list() == [None, "download_http_503", "download_http_404", None] + ["download_http_500"] * 2
    )
    before = images(folder)
    server.requests.clear()
    request_retry(tmp_path, SHARD, rows["sample_id"][[0, 1, 4, 5]].to_list())  # 0 did not fail: it stays
    second = fetch(rows, tmp_path)
    assert {path: n for path, n in server.requests.items() if path.endswith(".jpg")} == {
        "/1.jpg": 1, "/4.jpg": 1, "/5.jpg": 1,
    }  # fmt: skip
    assert second["reason"].to_list() == [None, None, "download_http_404", None, None, "download_http_500"]
    after = images(folder)
    assert {name: after[name] for name in before} == before
    assert [after[name] for name in second["member"][[1, 4]]] == [jpeg(1), jpeg(4)]
    for member, sample_id in zip(second["member"][[1, 4]], rows["sample_id"][[1, 4]], strict=True):
        facts = json.loads(after[member.replace(".jpg", ".json")])
        assert (facts["uid"], facts["key"]) == (sample_id, member.removesuffix(".jpg"))
        assert member.removesuffix(".jpg") == f"{int(sample_id, 16):010d}"
    # as a download that had met no trouble
    calm = Server({path: [200] if answers[-1] == 200 else answers for path, answers in server.answers.items()})
    fresh = download_shard(rows, tmp_path / "fresh", SHARD, settings=calm.download)
    calm.shutdown()
    calm.server_close()
    assert fresh.drop("message", "fetched_at").equals(second.drop("message", "fetched_at"))
    # what was requested is done: the next call fetches nothing
    server.requests.clear()
    assert fetch(rows, tmp_path).equals(second)
    assert not server.requests


def test_an_image_of_the_denylist_stays_dropped_when_others_are_fetched_again(tmp_path: Path, server: Server) -> None:
    add_to_denylist(tmp_path, [("sha256", hashlib.sha256(jpeg(0)).hexdigest())])
    denylist = Denylist.load(tmp_path)
    fetch = partial(download_shard, shard_key=SHARD, settings=server.download, denylist=denylist)
    first = fetch(urls(), tmp_path)
    assert first.row(0, named=True)["reason"] == "takedown"
    request_retry(tmp_path, SHARD, urls()["sample_id"][[1]].to_list())
    second = fetch(urls(), tmp_path)
    assert second["reason"].to_list()[:2] == ["takedown", None]
    assert second["status"].to_list()[:2] == ["dropped", "kept"]


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", ["first rename", "second rename", "written", "fetching"])
def test_a_retry_that_is_killed_loses_no_image(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    class KilledError(BaseException):
        pass

    fetch = partial(download_shard, shard_key=SHARD, settings=server.download)
    rows, folder = urls(), tmp_path / SHARD
    fetch(rows, tmp_path)
    before = images(folder)
    request_retry(tmp_path, SHARD, rows["sample_id"].to_list())
    with monkeypatch.context() as patched:
        if "rename" in killed_at:
            renames, rename = iter(range(9)), atomic.os.replace
            limit = 0 if killed_at == "first rename" else 1

            def killed(source: Path, target: Path) -> None:
                if next(renames) == limit:
                    raise KilledError
                rename(source, target)

            patched.setattr(
                download, "swap_folder", lambda draft, final: [atomic.os.replace(draft, atomic._swapping(final)),
                patched.setattr(atomic.os, "replace", killed), atomic.finish_swap(final)],
            )  # fmt: skip
        else:
            step = "write_receipt" if killed_at == "written" else "fetch_shard"
            patched.setattr(download, step, _raise(KilledError))
        with pytest.raises(KilledError):
            fetch(rows, tmp_path)
    after = fetch(rows, tmp_path)
    assert after["status"].to_list()[:2] == ["kept", "kept"]
    kept = images(folder)
    assert {name: kept[name] for name in before} == before
    # beside it only what `remove_stale` removes once this process has ended
    assert [path.name for path in tmp_path.iterdir() if ".tmp-" not in path.name] == [SHARD]


def _raise(error: type[BaseException]) -> Any:
    def raising(*arguments: Any, **named: Any) -> None:
        raise error

    return raising


# -- reasons ----------------------------------------------------------------------------------------------------------


def test_patterns_name_reasons() -> None:
    named = reason_patterns("timeout, http_5xx,connection_*,download_lost")
    for reason in ("download_timeout", "download_http_503", "download_http_500", "download_connection_lost"):
        assert is_meant(reason, named), reason
    for reason in ("download_http_404", "download_http_5xx", "opt_out", "no_url", "download_timeouts", "timeout_else"):
        assert not is_meant(reason, named), reason
    default = reason_patterns(None)
    for reason in ("download_timeout", "download_http_429", "engine_error:RuntimeError", "missing_in_tar"):
        assert is_meant(reason, default), reason
    for reason in (
        "opt_out", "takedown", "download_http_404", "download_http_403", "url_refused:private_address", "no_url",
        "image_undecodable", "robots_disallowed", "download_too_many_bytes",
    ):  # fmt: skip
        assert not is_meant(reason, default), reason
    with pytest.raises(ValueError, match="such as timeout"):
        reason_patterns(" , ")


# -- rows of models ---------------------------------------------------------------------------------------------------


class Engine:
    """Gives the length of a caption; fails on those with a word while it is broken. Counts what it was asked."""

    def __init__(self) -> None:
        self.fails_on: str | None = None
        self.is_broken = False
        self.asked: list[str] = []

    def compute(self, ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        samples = ctx.store.read("raw/samples", shard)
        if self.is_broken:
            raise BrokenEngineError("it fails on everything")
        values: list[float | None] = []
        reasons = []
        for row in samples.iter_rows(named=True):
            kept = row["status"] == "kept"
            self.asked += [row["caption"]] if kept else []
            fails = kept and self.fails_on is not None and self.fails_on in row["caption"]
            values.append(float(len(row["caption"])) if kept and not fails else None)
            reasons.append(
                "engine_error:RuntimeError" if fails else None if kept else f"upstream_{row['status']}:{row['reason']}"
            )
        return samples.select("sample_id", "source_row").with_columns(
            pl.Series("value", values, pl.Float64), pl.Series("reason", reasons, pl.String)
        )


def test_a_model_is_asked_for_its_failed_rows_alone(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=2)
    ctx = PoolContext.open(settings, "photos")
    engine = Engine()
    table = Table(
        name="signals/icc",
        grain="shard",
        inputs=("raw/samples",),
        version="1",
        description="Lengths.",
        compute=engine.compute,
        needs=Needs(roles=("sentence_encoder",)),
        continues="raw/samples",
    )
    tables = {**tables_of(ctx), "signals/icc": table}
    engine.fails_on = "thing 4"
    for shard in ctx.shards():
        for name in (*RAW, "signals/icc"):
            materialise_table(ctx, tables[name], shard, tables=tables)
    failed = failed_rows(ctx, {name: tables[name] for name in (*RAW, "signals/icc")}, reason_patterns(None))
    assert [(part.table, part.shard, len(part.positions)) for part in failed] == [("signals/icc", "photos-000000", 1)]
    before = {shard: ctx.store.read("signals/icc", shard) for shard in ctx.shards()}
    versions = {shard: ctx.store.manifest("signals/icc", shard) for shard in ctx.shards()}

    engine.asked.clear()
    notices: list[str] = []
    engine.is_broken = True
    recompute_rows(ctx, tables, failed, notices.append)
    assert "rows keep their reasons" in notices[0]
    assert ctx.store.read("signals/icc", "photos-000000").equals(before["photos-000000"])

    engine.is_broken, engine.fails_on = False, None
    recompute_rows(ctx, tables, failed)
    assert len(engine.asked) == 1
    assert "thing 4" in engine.asked[0]
    after = ctx.store.read("signals/icc", "photos-000000")
    row = failed[0].positions[0]
    assert after["value"][row] == len(engine.asked[0])
    others = pl.int_range(after.height, eager=True) != row
    assert after.filter(others).equals(before["photos-000000"].filter(others))
    assert after.schema == before["photos-000000"].schema
    assert is_up_to_date(ctx, table, "photos-000000", tables=tables)
    assert ctx.store.manifest("signals/icc", "photos-000001") == versions["photos-000001"]
    assert retry.counts_after(ctx, failed) == [
        {"table": "signals/icc", "reason": "engine_error:RuntimeError", "before": 1, "succeeded": 1, "still_failed": {}}
    ]

    engine.asked.clear()  # a source that changed since has other rows in these places
    shutil.copy(tmp_path / "tars" / "000001.tar", tmp_path / "tars" / "000000.tar")
    recompute_rows(ctx, tables, failed)
    assert engine.asked == []


# -- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_retry_of_a_pool_counts_before_and_after(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls().select("url", "caption").write_csv(tmp_path / "urls.csv")
    settings = load_settings(tmp_path / "home", "embedded")
    options = {"min_success_rate": 0.1, "distil": False, "downstream": False}
    add_pool(settings, "mine", tmp_path / "urls.csv", download=server.download, options=options)
    run_pool(settings, "mine", tables=RAW)
    dry = curate("retry", "mine", "--home", settings.home, "--dry-run", "--json")
    assert dry.exit_code == 0, dry.output
    assert json.loads(dry.stdout)["reasons"] == [
        {"table": "raw/downloads", "reason": "download_http_500", "before": 2},
        {"table": "raw/downloads", "reason": "download_http_503", "before": 1},
    ]
    server.requests.clear()
    # what depends on the samples takes models and minutes
    monkeypatch.setattr(defs_retry, "run_and_publish", lambda *given, **settings: run_pool(*given, tables=RAW))
    done = curate("retry", "mine", "--home", settings.home, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["reasons"] == [
        {"table": "raw/downloads", "reason": "download_http_500", "before": 2, "succeeded": 1,
         "still_failed": {"download_http_500": 1}},
        {"table": "raw/downloads", "reason": "download_http_503", "before": 1, "succeeded": 1, "still_failed": {}},
    ]  # fmt: skip
    assert set(server.requests) - {"/robots.txt"} == {"/1.jpg", "/4.jpg", "/5.jpg"}
    samples = PoolContext.open(settings, "mine").store.read("raw/samples", SHARD)
    assert samples["status"].to_list() == ["kept", "kept", "failed", "kept", "kept", "failed"]
    none = curate("retry", "mine", "--home", settings.home, "--reason", "timeout")
    assert none.exit_code == 0
    assert none.stdout.strip() == "mine: no row failed with timeout"


def _raw_tables(settings: Settings, pool: str, *, tables: object = None, **given: object) -> None:
    """What `run_pool` does of the raw tables, without Dagster."""
    ctx = PoolContext.open(settings, pool)
    declared = tables_of(ctx)
    for shard in ctx.shards():
        for name in RAW:
            materialise_table(ctx, declared[name], shard, tables=declared)


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.slow
@pytest.mark.parametrize("at", range(12))
def test_a_killed_retry_is_finished_by_the_next_with_the_same_counts(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Killed at its n-th step, whatever that is: a second call fetches, counts and ends as an undisturbed one."""
    urls().select("url", "caption").write_csv(tmp_path / "urls.csv")
    settings = load_settings(tmp_path / "home", "embedded")
    options = {"min_success_rate": 0.1, "distil": False, "downstream": False}
    add_pool(settings, "mine", tmp_path / "urls.csv", download=server.download, options=options, shard_size=3)
    _raw_tables(settings, "mine")
    monkeypatch.setattr(defs_retry, "run_pool", _raw_tables)
    monkeypatch.setattr(defs_retry, "run_and_publish", _raw_tables)
    steps = iter(range(99))

    def killing(function: Any, *, after: bool) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if not after:
                _killed_or(next(steps), at)
            result = function(*arguments, **named)
            if after:
                _killed_or(next(steps), at)
            return result

        return called

    with monkeypatch.context() as patched:
        for owner, name, after in (
            (defs_retry, "begin_retry", True),
            (retry, "request_retry", False),
            (retry, "request_retry", True),
            (ShardStore, "remove", True),
            (defs_retry, "run_pool", True),
            (defs_retry, "recompute_rows", True),
            (defs_retry, "run_and_publish", True),
            (defs_retry, "counts_after", True),
        ):
            patched.setattr(owner, name, killing(getattr(owner, name), after=after))
        if at < 11:  # the steps of two shards; one more comes to its end
            with pytest.raises(KilledError):
                defs_retry.retry_pool(settings, "mine")
            assert (settings.work("mine") / retry.PENDING).is_file()
    counted = defs_retry.retry_pool(settings, "mine")
    assert [(row["reason"], row["before"], row["succeeded"]) for row in counted] == [
        ("download_http_500", 2, 1),
        ("download_http_503", 1, 1),
    ]
    assert {path: n for path, n in server.requests.items() if path in ("/0.jpg", "/2.jpg", "/3.jpg")} == {
        "/0.jpg": 1, "/2.jpg": 1, "/3.jpg": 1,
    }, "no other image is fetched again"  # fmt: skip
    assert not (settings.work("mine") / retry.PENDING).exists()
    left = defs_retry.retry_pool(settings, "mine", reasons="timeout")
    assert left == []


def _killed_or(step: int, at: int) -> None:
    if step == at:
        raise KilledError


def test_rows_of_a_source_that_changed_since_are_not_taken_for_those_of_a_killed_retry(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls().select("url", "caption").write_csv(tmp_path / "urls.csv")
    settings = load_settings(tmp_path / "home", "embedded")
    options = {"min_success_rate": 0.1, "distil": False, "downstream": False}
    add_pool(settings, "mine", tmp_path / "urls.csv", download=server.download, options=options)
    _raw_tables(settings, "mine")
    ctx = PoolContext.open(settings, "mine")
    failed = failed_rows(ctx, tables_of(ctx), reason_patterns(None))
    retry.begin_retry(ctx, failed)
    assert retry.with_pending(ctx, []) == failed
    urls().select("url", "caption")[::-1].write_csv(tmp_path / "urls.csv")
    _raw_tables(settings, "mine")
    assert retry.with_pending(PoolContext.open(settings, "mine"), []) == []
