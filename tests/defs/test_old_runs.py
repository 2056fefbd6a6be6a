"""Records of old runs go; what the UI, the automation and lineage need of them stays."""

import os
import time
from pathlib import Path

import dagster as dg
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.lineage import recorded_lineage
from curation_assets.defs.old_runs import remove_old
from curation_assets.flow.context import PoolContext
from curation_assets.operations.retention import DAY_SECONDS
from curation_assets.stores.costs import read_attempts
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool

TABLES = ["raw/registered_shards", "raw/downloads", "raw/samples", "filtered/duplicates"]


def run_ids(instance: dg.DagsterInstance) -> set[str]:
    return {run.run_id for run in instance.get_runs()}


@pytest.mark.slow
def test_replaced_runs_go_and_the_newest_of_every_shard_stays(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=2, per_shard=4)
    ctx = PoolContext.open(settings, "photos")
    samples = dg.AssetKey(["photos", "raw", "samples"])
    run_pool(settings, "photos", tables=TABLES)
    with prepare_instance(settings) as instance:
        first = run_ids(instance)
        for table in TABLES[:3]:  # all of the first run is made again, but for one shard's samples
            for shard in ctx.shards():
                if (table, shard) != ("raw/samples", "photos-000001"):
                    ctx.store.table_path(table, shard).unlink()
        ctx.store.remove("filtered/duplicates")
        run_pool(settings, "photos", tables=TABLES)
        second = run_ids(instance) - first
        ctx.store.table_path("raw/samples", "photos-000000").unlink()
        run_pool(settings, "photos", tables=["raw/samples"], shards=["photos-000000"])
        third = run_ids(instance) - first - second
        lineage = recorded_lineage(ctx, "filtered/duplicates").edges
        assert set(lineage["dagster"]) == {"agrees"}
        before = instance.get_materialized_partitions(samples)
        logs = {run_id: tmp_path / "dagster/storage" / run_id / "compute_logs" for run_id in first | second | third}
        for folder in logs.values():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "step.out").write_text("said")
        assert remove_old(settings, instance, time.time())[0].count == 0, "nothing is 90 days old"
        removed = {one.what: one.count for one in remove_old(settings, instance, time.time() + 91 * DAY_SECONDS)}
        left = run_ids(instance)
        assert removed["runs"] == len(first | second | third) - len(left) > 0
        assert third <= left
        assert not any(folder.exists() for folder in logs.values())
        assert instance.get_materialized_partitions(samples) == before == set(ctx.shards())
        records = instance.fetch_materializations(samples, limit=100).records
        assert {record.run_id for record in records} <= left
    assert recorded_lineage(ctx, "filtered/duplicates").edges.equals(lineage)
    assert {report.computed for report in run_pool(settings, "photos", tables=TABLES)} == {0}


@pytest.mark.slow
def test_files_go_by_their_age_and_cost_of_what_is_stored_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = webdataset_pool(tmp_path, shards=1, per_shard=4)
    ctx = PoolContext.open(settings, "photos")
    run_pool(settings, "photos", tables=TABLES[:3])
    manifest = ctx.store.manifest("raw/samples", "photos-000000")
    assert manifest is not None
    log = ctx.store.root / "costs" / "attempts-other-1.jsonl"
    log.write_text(
        '{"id": "a", "asset": "raw/samples", "partition": "photos-000000", "run_id": "r", "started_at": "2020"}\n'
        '{"id": "a", "outcome": "written", "content_sha256": "' + manifest.content_sha256 + '"}\n'
        '{"id": "b", "asset": "raw/samples", "partition": "photos-000000", "run_id": "r", "started_at": "2020"}\n'
    )
    (tmp_path / "logs").mkdir()
    traceback = tmp_path / "logs" / "error-1.txt"
    traceback.write_text("Traceback")
    for number in (1, 2):
        folder = ctx.store.root / "recuts" / f"{number:04d}"
        folder.mkdir(parents=True)
        (folder / "flips.json").write_text("{}")
        os.utime(folder, (0, 0))
    for path in (log, traceback):
        os.utime(path, (0, 0))
    home = ["--home", str(tmp_path), "--profile", "embedded"]
    monkeypatch.setenv("CURATION_KEEP_DAYS", "0")
    kept = curate("verify", "--only", "old", *home)
    assert "nothing: CURATION_KEEP_DAYS is 0" in kept.stdout
    monkeypatch.setenv("CURATION_KEEP_DAYS", "30")
    removed = curate("verify", "--only", "old", *home)
    assert removed.exit_code == 0, removed.output
    assert "1 cost records of replaced tables, 1 reports of refits, 1 tracebacks" in removed.stdout
    assert "a" in log.read_text()
    assert [path.name for path in sorted((ctx.store.root / "recuts").iterdir())] == ["0002"], "the newest stays"
    attempts = read_attempts(ctx.store.root)
    assert "written" in attempts["outcome"].to_list()
    assert not (attempts["outcome"] == "killed").any()


def test_a_wrong_number_of_days_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_KEEP_DAYS", "-1")
    with pytest.raises(ValueError, match="keep_days must be days, or 0 to keep everything, got -1"):
        load_settings(tmp_path, "embedded")
