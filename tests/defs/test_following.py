"""New shards: the rest of the chain follows by itself, one run per step, and says what it waits for."""

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import dagster as dg
import pytest

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.core.settings import Settings
from curation_assets.definitions import build_definitions
from curation_assets.defs import webserver
from curation_assets.defs.automation import EDITS
from curation_assets.defs.following import CAUSE, Step, next_step, requests_of
from curation_assets.defs.launch import RANGE_END, RANGE_START, prepare_instance, run_pool
from curation_assets.defs.webserver import declarations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.selection.policy import POLICIES_ROOT
from tests.support.lineage_pools import jpeg, webdataset_pool, write_tar
from tests.support.webserver import running_daemon

RAW = ("raw/registered_shards", "raw/downloads", "raw/samples")
LATER = 10_000.0  # seconds from now, when any quiet period is over


def make_raw(ctx: PoolContext) -> None:
    tables = tables_of(ctx)
    for shard in ctx.shards():
        for name in RAW:
            materialise_table(ctx, tables[name], shard, tables=tables)


def add_tars(home: Path, numbers: Iterator[int] | range, per_shard: int = 4) -> None:
    for number in numbers:
        rows = [
            (
                f"{at:06d}",
                f"http://host.example/{number}_{at}.jpg",
                f"a photo of place {number} {at}",
                jpeg(number * 100 + at),
            )
            for at in range(per_shard)
        ]
        write_tar(home / "tars" / f"{number:06d}.tar", rows)


def test_what_follows_waits_for_the_shards_in_words_and_then_takes_one_step(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path)
    ctx = PoolContext.open(settings, "photos")
    with dg.DagsterInstance.ephemeral() as instance:
        now = time.time()
        assert next_step(ctx, instance, now) == "waits until 3 new shards are registered as partitions"
        instance.add_dynamic_partitions("photos", ctx.shards())
        assert next_step(ctx, instance, now) == "waits for the scheduled backfill (0 * * * *) of 3 new shards"
        make_raw(ctx)
        waiting = next_step(ctx, instance, time.time())
        assert isinstance(waiting, str)
        assert waiting.startswith("waits until nothing was written for 5 minutes")
        step = next_step(ctx, instance, now + LATER)
        assert isinstance(step, Step)
        assert step.grain == "shard"
        assert step.keys == tuple(ctx.shards())
        assert not set(RAW) & set(step.tables)
        assert step == next_step(ctx, instance, now + LATER), "equal state, equal request"
        (request,) = requests_of(ctx.pool, step, ctx.shards())
        assert request.job_name == "photos_shards"
        assert (request.tags[RANGE_START], request.tags[RANGE_END]) == ("photos-000000", "photos-000002")
        (first, second) = requests_of(ctx.pool, Step(step.tables, "shard", step.keys[::2], "s"), ctx.shards())
        assert first.run_key != second.run_key
        assert len(requests_of(ctx.pool, step, ctx.shards(), shards_per_run=2)) == 2
        assert len(requests_of(ctx.pool, step, ctx.shards(), shards_per_run=0)) == 1


def _new_cron(pools: Path) -> None:
    path = pools / "photos.yaml"
    path.write_text(path.read_text() + '  backfill_cron: "*/2 * * * *"\n')


def _new_policy(pools: Path) -> None:
    (pools / "photos").mkdir()
    policy = (POLICIES_ROOT / "clip.yaml").read_text().replace("name: clip", "name: mine")
    (pools / "photos" / "mine.yaml").write_text(policy)


@pytest.mark.parametrize("edit", [_new_cron, _new_policy])
def test_sensors_follow_what_was_loaded_and_say_when_that_is_no_longer_what_is_declared(
    tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    """Else a sensor would wait for a schedule that no condition has."""
    settings = webdataset_pool(tmp_path)
    with prepare_instance(settings) as instance:

        def said(definitions: dg.Definitions, name: str) -> str:
            sensor = definitions.get_repository_def().get_sensor_def(name)
            ticked = sensor.evaluate_tick(dg.build_sensor_context(instance, definitions=definitions))
            return str(ticked.skip_message)

        loaded = build_definitions(settings)
        instance.add_dynamic_partitions("photos", PoolContext.open(settings, "photos").shards())
        assert "(0 * * * *) of 3 new shards" in said(loaded, "photos_follows_new_shards")
        edit(settings.pools_root)
        for name in ("photos_follows_new_shards", "photos_new_shards"):
            assert "changed since this code location was loaded" in said(loaded, name), name
            assert "*/2" not in said(loaded, name)
        again = build_definitions(settings)
        cron = "*/2 * * * *" if edit is _new_cron else "0 * * * *"
        assert f"({cron}) of 3 new shards" in said(again, "photos_follows_new_shards")
        assert said(again, "photos_new_shards") == f"3 shards known, none new{EDITS}"


def test_what_is_edited_while_the_ui_starts_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webserver, "LOOK_SECONDS", 0.05)
    settings = webdataset_pool(tmp_path)
    loaded = declarations(settings)
    reloaded = threading.Event()

    class Ui(BaseHTTPRequestHandler):  # what it answers to its button Reload
        def do_POST(self) -> None:
            reloaded.set()
            answer = b'{"data": {"reloadRepositoryLocation": {"__typename": "WorkspaceLocationEntry"}}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = HTTPServer(("127.0.0.1", 0), Ui)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with webserver._following_declarations(settings, url, loaded):
            assert not reloaded.wait(0.5)
        _new_cron(settings.pools_root)  # after the code server has read it, before anybody looks
        with webserver._following_declarations(settings, url, loaded):
            assert reloaded.wait(60)
    finally:
        server.shutdown()
        server.server_close()


def test_nothing_follows_what_a_person_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = webdataset_pool(tmp_path)
    ctx = PoolContext.open(settings, "photos")
    make_raw(ctx)
    manifest = ctx.store.manifest("raw/samples", "photos-000001")
    assert manifest is not None
    ctx.store.write(
        "raw/samples", ctx.store.read("raw/samples", "photos-000001"), "photos-000001", code_version="another"
    )
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("photos", ctx.shards())
        sentence = next_step(ctx, instance, time.time() + LATER)
    assert isinstance(sentence, str)
    assert "table raw/samples rest on other code" in sentence
    assert "`curate run photos`" in sentence


def declared_quick(home: Path) -> Settings:
    """Three tars; the clock of the backfill ticks every minute."""
    settings = webdataset_pool(home)
    declaration = settings.pools_root / "photos.yaml"
    text = declaration.read_text(encoding="utf-8")
    declaration.write_text(text.replace("options:", "options:\n  backfill_cron: '* * * * *'\n  quiet_minutes: 0.1"))
    return settings


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_tars_that_are_dropped_into_the_folder_end_in_ledger_subset_and_report(tmp_path: Path) -> None:
    """The real daemon: nobody touches anything between the new tars and the new report."""
    settings = declared_quick(tmp_path)
    run_pool(settings, "photos")
    ctx = PoolContext.open(settings, "photos")
    followed = ("filtered/subsets", "downstream/report")
    before = {name: ctx.store.manifest(name) for name in (*followed, "filtered/icc_cut")}
    add_tars(tmp_path, range(3, 43))
    instance = prepare_instance(settings)
    with running_daemon(settings) as wait_until:
        wait_until(lambda: next_step(ctx, instance, time.time()) == "up to date with 43 shards")
    after = {name: ctx.store.manifest(name) for name in before}
    assert after["filtered/icc_cut"] == before["filtered/icc_cut"], "cuts stay"
    assert [name for name in followed if after[name] == before[name]] == []
    assert len(recorded_ledger(ctx.store, "icc").paths) == 43
    runs = [run for run in instance.get_runs() if run.job_name == "photos_summary" and CAUSE in run.tags]
    assert all(run.status == dg.DagsterRunStatus.SUCCESS for run in runs)
    assert len(runs) <= 4, "one run per step, not one per shard"
