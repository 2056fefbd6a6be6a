"""A tiny pool through real Dagster, real img2dataset, real models: what comes out, and what a second run does."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest

from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.flow.conservation import violations
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.stores.catalog import rebuild_catalog
from tests.conftest import FinishedPool
from tests.support.id_lists import unpack_uids
from tests.support.paths import REPOSITORY
from tests.support.verdicts import kept_ids


def test_every_table_is_there_and_computed(finished_pool: FinishedPool) -> None:
    declared = tables_of(finished_pool.ctx)
    assert {report.table for report in finished_pool.reports} == set(declared)
    assert all(report.computed and not report.reused for report in finished_pool.reports)


def test_rows_are_conserved_in_every_table_and_shard(finished_pool: FinishedPool) -> None:
    ctx = finished_pool.ctx
    assert ctx.store.scan("raw/samples").collect().height == 120
    for table in tables_of(ctx).values():
        for shard in table.partitions(ctx.shards()):
            assert violations(ctx, table, shard) == [], (table.name, shard)


def test_planted_trouble_ends_with_a_reason(finished_pool: FinishedPool) -> None:
    samples = finished_pool.ctx.store.scan("raw/samples").collect()
    counts = dict(samples["status"].value_counts().iter_rows())
    assert counts["kept"] > 90
    assert counts.get("failed", 0) > 0, "the scene server plants failures in every pool"
    assert samples.filter((pl.col("status") != "kept") & pl.col("reason").is_null()).is_empty()


def test_signals_have_values_for_kept_samples_and_reasons_for_others(finished_pool: FinishedPool) -> None:
    store = finished_pool.ctx.store
    kept = set(store.scan("raw/samples").filter(pl.col("status") == "kept").collect()["sample_id"])
    for name in ("icc", "clip_score", "sieve"):
        frame = store.scan(f"signals/{name}").collect()
        foreign = set(frame.filter(pl.col("reason") == "not_english")["sample_id"])
        assert bool(foreign) == (name == "icc"), "a caption in another language is no number of the shipped student"
        valued = set(frame.filter(pl.col("value").is_not_null())["sample_id"])
        assert valued == kept - foreign, name
        others = frame.filter(pl.col("value").is_null() & (pl.col("reason") != "not_english"))
        assert others["reason"].str.starts_with("upstream_").all(), name


def test_policies_keep_exactly_their_share_and_npy_replays_the_verdicts(finished_pool: FinishedPool) -> None:
    ctx = finished_pool.ctx
    sizes = set()
    for policy in policies_of(ctx):
        kept = kept_ids(ctx, policy.name)
        sizes.add(len(kept))
        packed = np.load(ctx.store.folder_path("filtered/subsets") / f"{policy.name}.npy", allow_pickle=False)
        assert unpack_uids(packed) == kept, policy.name
    assert len(sizes) == 1, "subsets of one pool must be equally large to be comparable"


def test_downstream_has_every_policy_and_metric(finished_pool: FinishedPool) -> None:
    ctx = finished_pool.ctx
    for name, metric in (("captioning", "cider"), ("retrieval", "text_to_image_recall@1")):
        results = ctx.store.read(f"downstream/{name}").filter(pl.col("metric") == metric)
        controls = {"longest_caption", "oracle", "all"}
        assert sorted(results["policy"]) == sorted({policy.name for policy in policies_of(ctx)} | controls)
        assert results["value"].is_finite().all()


def test_report_is_one_self_contained_page(finished_pool: FinishedPool) -> None:
    page = (finished_pool.ctx.store.folder_path("downstream/report") / "report.html").read_text()
    assert page.count("<img") > 20
    assert 'src="http' not in page
    for heading in (
        "Every row accounted for", "Policies", "Teachers and their fusion", "What each subset was made from", "Costs",
    ):  # fmt: skip
        assert heading in page
    compare = (finished_pool.ctx.store.folder_path("downstream/report") / "compare.html").read_text()
    assert '"steps": ' in compare
    assert 'src="http' not in compare


def test_any_table_opens_in_plain_duckdb(finished_pool: FinishedPool) -> None:
    catalog = rebuild_catalog(finished_pool.settings.home)
    with duckdb.connect(str(catalog), read_only=True) as connection:
        rows = connection.sql("select count(*), count(distinct shard) from tiny.signals_icc").fetchall()
    assert rows == [(120, 2)]


def test_dagster_recorded_every_partition_and_its_checks(finished_pool: FinishedPool) -> None:
    import dagster as dg

    instance = prepare_instance(finished_pool.settings)
    for table in tables_of(finished_pool.ctx).values():
        key = dg.AssetKey(["tiny", *table.name.split("/")])
        if table.grain == "shard":
            assert instance.get_materialized_partitions(key) == {"tiny-000000", "tiny-000001"}, table.name
        event = instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        counted = {"pool": "dagster/row_count"}.get(table.grain, "dagster/partition_row_count")
        assert ("files" if table.is_folder else counted) in event.asset_materialization.metadata, table.name
        if table.name == "downstream/report":
            page = event.asset_materialization.metadata["report"].value
            assert not Path(str(page)).is_absolute()  # a copied home shows its own
            assert (finished_pool.settings.home / str(page)).name == "report.html"
            assert (finished_pool.settings.home / str(page)).is_file()
    records = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(dg.AssetKey(["tiny", "raw", "samples"]), "rows_conserved"), limit=1
    )
    assert records
    assert records[0].status.value == "SUCCEEDED"


def test_second_run_does_no_work(finished_pool: FinishedPool) -> None:
    reports = run_pool(finished_pool.settings, "tiny")
    assert {report.table for report in reports if report.computed} == set()
    assert sum(report.reused for report in reports) >= len(finished_pool.reports)


@pytest.mark.slow
def test_a_whole_pool_in_a_home_whose_name_is_a_pattern(tmp_path: Path) -> None:
    """Every table, Dagster's own storages, the catalogue and the commands; and nothing is noted for telemetry."""
    home, source = tmp_path / "exp [a-b] 1 é", tmp_path / "exp [a-b] 1 é" / "captions [x]*"
    (tmp_path / "exp a 1 é").mkdir()  # what the name matches as a pattern
    source.mkdir(parents=True)
    captions = [f"a red kite over {number} hills" for number in range(12)]
    pl.DataFrame({"caption": captions}).write_parquet(source / "part [0].parquet")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment = {name: value for name, value in environment.items() if not name.startswith("DAGSTER_")}

    def curate(*words: str) -> str:
        command = [sys.executable, "-c", "from curation_assets.cli import main; main()", *words, "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    curate("pool", "add", "kites", str(source))
    curate("run", "kites")
    assert "everything is up to date" in curate("plan", "kites")
    curate("verify", "kites")
    curate("export", "npy", "random", "--out", str(tmp_path / "out [1]"))
    curate("doctor")
    with duckdb.connect(str(home / "catalog.duckdb"), read_only=True) as connection:
        assert connection.sql("select count(*) from kites.signals_icc").fetchall() == [(12,)]
        assert connection.sql("select count(*) from kites.ledger_random").fetchall() == [(12,)]
    made = {path.name for path in (home / "dagster").iterdir()}
    assert {"dagster.yaml", "history"} <= made
    assert made.isdisjoint({"logs", ".telemetry", ".logs_queue"})  # Dagster writes there what it would send
    assert list((tmp_path / "exp a 1 é").iterdir()) == []
