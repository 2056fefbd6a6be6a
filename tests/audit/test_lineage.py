"""Lineage: manifests walked back, Dagster's records checked against them, and the same as OpenLineage events."""

import json
import threading
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.audit.openlineage_events import emit, events_of
from curation_assets.audit.origin import AGREES, DIFFERS, UNRECORDED, checked, lineage_of, lineage_svg, summary
from curation_assets.core.settings import Settings
from curation_assets.core.stages import STAGES
from curation_assets.defs.launch import run_pool
from curation_assets.defs.lineage import lineage_events, recorded_lineage
from curation_assets.flow.context import PoolContext
from curation_assets.stores.shard_store import MissingTableError
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos, webdataset_pool

RAW = ["raw/registered_shards", "raw/downloads", "raw/samples"]
TABLES = [
    *RAW,
    "filtered/duplicates",
    "filtered/random_cut",
    "filtered/random",
]  # a real run through Dagster that asks no model
PLACES = {stage: place for place, stage in enumerate(STAGES)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    settings = replace(webdataset_pool(tmp_path_factory.mktemp("home"), shards=3), workers=1)
    run_pool(settings, "photos", tables=TABLES)
    return PoolContext.open(settings, "photos")


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A real HTTP server that keeps what it is sent, and refuses everything under /refuse."""
    got: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, json.loads(body)))
            self.send_response(400 if self.path.startswith("/refuse") else 201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    server.server_close()


def test_manifests_lead_from_the_subset_to_its_shards_models_and_code(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    lineage = lineage_of(ctx.store, "filtered/sieve_clip")
    assert lineage_of(ctx.store, "raw/samples").nodes.height == 9  # a table of shards: all of them
    output = {row["table"]: row for row in summary(lineage).to_dicts()}
    assert list(output)[:2] == ["raw/registered_shards", "raw/downloads"]
    assert list(output)[-1] == "filtered/sieve_clip"
    assert output["signals/clip_score"]["shards"] == 3
    assert output["signals/clip_score"]["models"] == "embedded:clip_score abababab"
    assert output["filtered/sieve_clip"]["shards"] == 3
    assert "signals/icc" not in output
    assert ("fused/sieve_clip", "filtered/sieve_clip") in lineage.links()
    assert lineage.edges["is_current"].all()
    # a signal made anew after the subset: the subset's input is no longer what is stored
    key = ctx.shards()[0]
    frame = ctx.store.read("signals/sieve", key).with_columns(pl.col("value") * 0.5)
    ctx.store.write("signals/sieve", frame, key, code_version="8")
    stale = {
        row["table"]: row["stale_inputs"] for row in summary(lineage_of(ctx.store, "filtered/sieve_clip")).to_dicts()
    }
    assert {table: count for table, count in stale.items() if count} == {
        "filtered/sieve_clip": 1,
        "fused/sieve_clip": 1,
        "fused/sieve_range": 1,
    }
    with pytest.raises(MissingTableError):
        lineage_of(ctx.store, "filtered/nothing")


def test_dagster_agrees_edge_by_edge_and_would_tell_if_it_did_not(ran: PoolContext) -> None:
    lineage = recorded_lineage(ran, "filtered/random")
    assert set(lineage.edges["dagster"]) == {AGREES}
    # of three shards: downloads, samples (two inputs), repeated rows, the cut (and those), the policy (two inputs)
    assert lineage.edges.height == 3 + 6 + 3 + (3 + 1) + 6
    runs = lineage.nodes.group_by("table").agg(pl.col("run_id").n_unique())
    assert (runs["run_id"] == 1).all()
    false = lineage.edges.drop("dagster", "dagster_sha256").with_columns(content_sha256=pl.lit("0" * 64))
    wrong = checked(type(lineage)(lineage.pool, lineage.target, lineage.nodes, false), _records(ran, lineage.tables))
    assert set(wrong.edges["dagster"]) == {DIFFERS}
    unknown = checked(lineage, _records(ran, lineage.tables).head(0))
    assert set(unknown.edges["dagster"]) == {UNRECORDED}


def _records(ctx: PoolContext, tables: list[str]) -> pl.DataFrame:
    from curation_assets.defs.launch import prepare_instance
    from curation_assets.defs.records import materialisations

    return materialisations(prepare_instance(ctx.settings), ctx.pool, tables)


@pytest.mark.slow
def test_the_version_used_is_told_after_a_shard_changed_in_a_later_run(tmp_path: Path) -> None:
    settings = replace(webdataset_pool(tmp_path, shards=2), workers=1)
    run_pool(settings, "photos", tables=TABLES)
    ctx = PoolContext.open(settings, "photos")
    before = recorded_lineage(ctx, "filtered/random")
    webdataset_pool(tmp_path / "other", shards=2, per_shard=9)
    (tmp_path / "other" / "tars" / "000001.tar").replace(tmp_path / "tars" / "000001.tar")
    run_pool(settings, "photos", tables=RAW)
    after = recorded_lineage(ctx, "filtered/random")
    edges = after.edges.filter(pl.col("table") == "filtered/random").sort("input_shard")
    assert edges.filter(pl.col("input_table") == "raw/samples")["is_current"].to_list() == [True, False]
    assert set(edges["dagster"]) == {AGREES}  # the log still knows the shard that the policy read
    old = before.edges.filter(pl.col("table") == "filtered/random").sort("input_shard")
    assert edges["dagster_sha256"].equals(old["dagster_sha256"])
    run_pool(settings, "photos", tables=TABLES)  # the cut is frozen: this run records it and does not compute it
    again = recorded_lineage(ctx, "filtered/random").edges
    cut = again.filter((pl.col("table") == "filtered/random_cut") & (pl.col("input_table") == "raw/samples"))
    assert cut.sort("input_shard")["is_current"].to_list() == [True, False]
    assert set(again["dagster"]) == {AGREES}


def test_openlineage_events_say_shards_versions_checks_and_failures(ran: PoolContext, tmp_path: Path) -> None:
    lineage = recorded_lineage(ran, "filtered/random")
    assert emit(lineage_events(ran, lineage), tmp_path / "events.jsonl") == 2 * len(TABLES)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [one["eventType"] for one in events].count("START") == len(TABLES)
    done = {one["job"]["name"]: one for one in events if one["eventType"] == "COMPLETE"}
    assert set(done) == {f"photos.{table.replace('/', '.')}" for table in TABLES}
    samples = done["photos.raw.samples"]
    assert samples["schemaURL"].startswith("https://openlineage.io/spec/2-0-2/")
    uuid.UUID(samples["run"]["runId"])
    assert samples["run"]["facets"]["parent"]["run"]["runId"] == lineage.nodes.filter(table="raw/samples")["run_id"][0]
    assert samples["run"]["facets"]["icc_versions"]["codeVersion"] == "1"
    (output,) = samples["outputs"]
    assert (output["namespace"], output["name"]) == ("curation_assets", "photos/raw/samples")
    nodes = lineage.nodes.filter(table="raw/samples")
    assert [(one["shard"], one["dataVersion"], one["rows"]) for one in output["facets"]["icc_shard"]["shards"]] == list(
        nodes.select("shard", "content_sha256", "row_count").iter_rows()
    )
    keys = [one["identifier"] for one in output["outputFacets"]["subset"]["outputCondition"]["partitions"]]
    assert keys == nodes["shard"].to_list()
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 24
    assert {one["name"] for one in output["facets"]["schema"]["fields"]} >= {"sample_id", "status", "reason"}
    used = next(one for one in done["photos.filtered.random"]["inputs"] if one["name"] == "photos/raw/samples")
    assert used["facets"]["version"] == output["facets"]["version"]
    assert used["inputFacets"]["dataQualityAssertions"]["assertions"][0] == {
        "assertion": "rows_conserved", "success": True, "params": {},
    }  # fmt: skip


def test_column_lineage_of_sql_is_in_the_events(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    events = lineage_events(ctx, lineage_of(ctx.store, "filtered/sieve_clip", pool="photos"))
    fused = next(
        one.outputs[0]
        for one in events
        if one.outputs and one.outputs[0].facets and "fused/sieve_clip" in one.outputs[0].name
    )
    assert fused.facets is not None
    fields = fused.facets["columnLineage"].fields
    assert {one.name for one in fields["sieve_score"].inputFields} >= {"photos/signals/sieve"}
    again = lineage_events(ctx, lineage_of(ctx.store, "filtered/sieve_clip", pool="photos"))
    assert [one.run.runId for one in events] == [one.run.runId for one in again]


@pytest.mark.slow
def test_a_failed_run_is_told_as_failed_and_a_run_tells_openlineage_only_when_asked(
    tmp_path: Path, receiver: tuple[str, list[tuple[str, dict[str, Any]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = receiver
    settings = webdataset_pool(tmp_path, shards=2)
    command = ["run", "photos", "--table", "raw/registered_shards", "--home", str(tmp_path)]
    monkeypatch.setenv("CURATION_WORKERS", "1")
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    assert curate(*command).exit_code == 0
    assert {path for path, _ in got} == {"/api/v1/lineage"}
    assert [one["eventType"] for _, one in got] == ["START", "COMPLETE"]
    table = tmp_path / "work/photos/raw/registered_shards/shard=photos-000001/data.parquet"
    table.unlink()
    (table / "in the way").mkdir(parents=True)  # nothing can take this name
    got.clear()
    failed = curate("run", "photos", "--table", "raw/registered_shards", home=tmp_path)
    assert failed.exit_code != 0
    kinds = [one["eventType"] for _, one in got]
    assert kinds[-2:] == ["START", "FAIL"]
    assert got[-1][1]["run"]["facets"]["errorMessage"]["message"]
    got.clear()
    monkeypatch.delenv("OPENLINEAGE_URL")
    curate(*command)
    assert got == []
    events = events_of(
        lineage_of(PoolContext.open(settings, "photos").store, "raw/registered_shards"), _store(settings)
    )
    with pytest.raises(ValueError, match="event 1 of"):
        emit(events, f"{url}/refuse/")
    with pytest.raises(ValueError, match="did not reach"):
        emit(events, "http://127.0.0.1:9/")


def _store(settings: Settings) -> Any:
    return PoolContext.open(settings, "photos").store


def test_command_prints_the_table_and_draws_the_graph(ran: PoolContext, tmp_path: Path) -> None:
    home = ["--home", str(ran.settings.home)]
    shown = curate("show", "lineage", "random", "--graph", tmp_path / "graph.svg", *home)
    assert shown.exit_code == 0, shown.output
    assert "agree on 22 of 22 inputs" in shown.output
    drawn = ElementTree.parse(tmp_path / "graph.svg").getroot()
    titles = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert [title.splitlines()[0] for title in titles] == TABLES
    arrows = [one for one in drawn.iter("{http://www.w3.org/2000/svg}path") if one.get("marker-end")]
    assert len(arrows) == 8
    output = json.loads(curate("show", "lineage", "random", "--json", *home).stdout)
    assert len(output["edges"]) == 22
    assert lineage_svg(lineage_of(ran.store, "filtered/random"), PLACES).count("<rect") == 6
    refused = curate("show", "lineage", "randon", *home, width=400)
    assert refused.exit_code == 1
    assert "no ledger of policy 'randon'" in refused.output
    assert "ledgers: random" in refused.output
    assert "did you mean 'filtered/random'" in curate("show", "lineage", "filtered/randon", *home, width=400).output
