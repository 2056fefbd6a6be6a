"""Costs: attempts are logged as they start and end, waste is told apart, sums are those of the log."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from curation_assets.audit.cost import per_kept_sample, stage_costs, table_costs
from curation_assets.stores.costs import read_attempts
from curation_assets.stores.shard_store import ShardStore
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos

SHARD = "p-000000"
FRAME = pl.DataFrame({"sample_id": ["a", "b"]})


def burn(seconds: float) -> pl.DataFrame:
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
    return FRAME


def break_after(seconds: float) -> pl.DataFrame:
    burn(seconds)
    raise OSError("disk full")


def test_costs_in_force_replaced_and_wasted_are_told_apart(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    with pytest.raises(OSError, match="disk full"):
        store.materialise("raw/samples", lambda: break_after(0.1), partition=SHARD, code_version="1", run_id="r1")
    store.materialise("raw/samples", lambda: burn(0.2), partition=SHARD, code_version="1", run_id="r2")
    store.materialise("raw/samples", lambda: burn(9.0), partition=SHARD, code_version="1", run_id="r3")  # reused
    store.materialise(
        "raw/samples", lambda: burn(0.05).with_columns(x=1), partition=SHARD, code_version="2", run_id="r4"
    )
    attempts = read_attempts(tmp_path)
    assert attempts["run_id"].to_list() == ["r1", "r2", "r4"]
    assert attempts["outcome"].to_list() == ["failed:OSError", "written", "written"]
    (row,) = table_costs(store, ["raw/samples", "raw/downloads"]).to_dicts()
    assert row["cpu_seconds"] == pytest.approx(0.05, abs=0.05)
    assert row["earlier_cpu_seconds"] == pytest.approx(0.2, abs=0.05)
    assert (row["wasted_attempts"], row["gpu_seconds"]) == (1, 0.0)
    assert row["wasted_cpu_seconds"] == pytest.approx(0.1, abs=0.05)
    assert row["bytes"] == store.table_path("raw/samples", SHARD).stat().st_size


def test_folders_and_tables_of_before_the_log_count_as_far_as_they_are_known(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    store.materialise_folder("distilled/model", lambda folder: _write(folder / "a", b"12345"), code_version="1")
    store.write("raw/samples", FRAME, SHARD, code_version="1", seconds=3.0)  # no attempt was logged
    costs = {row["table"]: row for row in table_costs(store, ["raw/samples", "distilled/model"]).to_dicts()}
    assert costs["distilled/model"]["bytes"] == 5
    assert costs["distilled/model"]["cpu_seconds"] is not None
    assert (costs["raw/samples"]["seconds"], costs["raw/samples"]["cpu_seconds"]) == (3.0, None)
    stages = {row["stage"]: row for row in stage_costs(pl.DataFrame(list(costs.values()))).to_dicts()}
    assert list(stages) == ["raw", "distilled", "total"]
    assert stages["total"]["cpu_seconds"] is None
    assert stages["total"]["bytes"] == sum(row["bytes"] for row in costs.values())


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_a_killed_attempt_is_waste_and_a_line_cut_short_harms_no_other(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from curation_assets.stores.costs import attempt\n"
        f"with attempt(Path({str(tmp_path)!r}), 'raw/samples', {SHARD!r}, 'r1'):\n"
        "    print('in', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    assert process.stdout.readline() == b"in\n"
    assert read_attempts(tmp_path).is_empty(), "one that is under way is no lost one"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    store = ShardStore(tmp_path)
    (log,) = (tmp_path / "costs").glob("*.jsonl")
    with log.open("a") as file:
        file.write('{"id": "cut')
    store.materialise("raw/samples", lambda: FRAME, partition=SHARD, code_version="1")
    assert read_attempts(tmp_path)["outcome"].to_list() == ["killed", "written"]
    (row,) = table_costs(store, ["raw/samples"]).to_dicts()
    assert (row["wasted_attempts"], row["wasted_seconds"]) == (1, 0.0)


def test_per_kept_sample_counts_what_is_behind_the_policy_and_nothing_else(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    random = per_kept_sample(ctx.store, "random")
    kept = ctx.store.scan("filtered/random").collect().filter(pl.col("verdict") == "kept").height
    behind = [
        "raw/registered_shards",
        "raw/downloads",
        "raw/samples",
        "filtered/duplicates",
        "filtered/random_cut",
        "filtered/random",
    ]
    expected = table_costs(ctx.store, behind)
    assert random["kept"] == kept
    assert random["cpu_seconds"] == pytest.approx(expected["cpu_seconds"].sum() / kept)
    assert random["bytes"] == expected["bytes"].sum() / kept
    assert per_kept_sample(ctx.store, "icc")["cpu_seconds"] is None  # its signals were written by hand
    home = ["--home", str(tmp_path)]
    shown = curate("show", "cost", "photos", *home)
    assert shown.exit_code == 0, shown.output
    assert "Per kept sample" in shown.output
    output = json.loads(curate("show", "cost", "photos", "--json", *home).stdout)
    assert output["per_kept_sample"]["random"] == random
    assert curate("show", "cost", "photos", "--tables", *home).exit_code == 0
