"""Blocks of shards as Dagster's partitions: the same tables, fewer events, and every way to run them works."""

import datetime
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.core.settings import Settings, load_settings
from curation_assets.definitions import build_definitions
from curation_assets.defs.assets import partitions_of, partitions_per_run
from curation_assets.defs.automation import EDITS, shard_sensor
from curation_assets.defs.following import Step, next_step, requests_of
from curation_assets.defs.launch import RANGE_END, RANGE_START, RunFailedError, prepare_instance, run_pool
from curation_assets.defs.lineage import recorded_lineage
from curation_assets.defs.metadata import together
from curation_assets.defs.partitions import new_and_old, partition_of, partitions_of_shards, shards_of
from curation_assets.defs.records import materialisations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.numeric.identity import sample_id_of
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.content_hash import frame_sha256
from tests.support.command import curate
from tests.support.lineage_pools import caption_of, jpeg, write_tar
from tests.support.webserver import running_daemon
from tests.torture.faults.bit_flips import flip_bit

RAW = ("raw/registered_shards", "raw/downloads", "raw/samples")
SIGNALS = ("icc", "clip_score", "sieve")
PER_SHARD = 3
LATER = 10_000.0  # seconds from now, when any quiet period is over
BLOCKS = ["photos-000000..000002", "photos-000003..000005", "photos-000006..000008"]


def url_of(number: int) -> str:
    return f"http://host{number % 3}.example/{number}.jpg"


def add_tar(home: Path, shard: int) -> None:
    numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
    rows = [(f"{number:06d}", url_of(number), caption_of(number), jpeg(number)) for number in numbers]
    write_tar(home / "tars" / f"{shard:06d}.tar", rows)


def pool_of(home: Path, size: int, shards: int = 7) -> Settings:
    """A pool of tars with given signals, so that no model runs; `size` shards per partition."""
    for shard in range(shards):
        add_tar(home, shard)
    numbers = range(30)
    columns = {name: [n * step % 17 / 17 for n in numbers] for name, step in zip(SIGNALS, (3, 5, 7), strict=True)}
    ids = [sample_id_of(url_of(number), caption_of(number)) for number in numbers]
    given = home / "given.parquet"
    pl.DataFrame({"sample_id": ids, "generated_captions": [[f"thing {n}"] for n in numbers], **columns}).write_parquet(
        given
    )
    options: dict[str, Any] = {
        "distil": False, "downstream": False, "policies": ["clip", "icc"], "fraction": 0.5, "image_domain": "other",
        "given_signals": {name: f"{given}:{name}" for name in SIGNALS}, "given": {"generated_captions": str(given)},
    }  # fmt: skip
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", home / "tars", options={**options, "shards_per_partition": size})
    return settings


def set_size(settings: Settings, size: int) -> None:
    path = settings.pools_root / "photos.yaml"
    lines = [line for line in path.read_text().splitlines() if "shards_per_partition" not in line]
    path.write_text("\n".join([*lines, f"  shards_per_partition: {size}"]) + "\n")


def key(name: str) -> dg.AssetKey:
    return dg.AssetKey(["photos", *name.split("/")])


def contents(settings: Settings) -> dict[str, str]:
    """Every table by shard and files of ids; not what names the home or a time."""
    store = PoolContext.open(settings, "photos").store
    found = {}
    for path in sorted(store.root.glob("*/*/*/data.parquet")):
        asset, shard = "/".join(path.relative_to(store.root).parts[:2]), path.parent.name
        if asset != "raw/registered_shards":  # which names its tar
            found[f"{asset} {shard}"] = frame_sha256(pl.read_parquet(path, hive_partitioning=False))
    for path in sorted(store.folder_path("filtered/subsets").glob("*.npy")):
        found[path.name] = path.read_bytes().hex()
    return found


def made(settings: Settings, asset: str = "raw/samples") -> list[str]:
    """Numbers of the stored shards of a table."""
    shards = PoolContext.open(settings, "photos").store.partitions(asset)
    return [shard[-1] for shard in shards]


def events(settings: Settings) -> int:
    """Rows of Dagster's event log."""
    counts = []
    for path in sorted(settings.dagster_home.rglob("*.db")):
        with sqlite3.connect(path) as connection:
            tables = connection.execute("select name from sqlite_master where name = 'event_logs'").fetchall()
            counts += [connection.execute("select count(*) from event_logs").fetchone()[0] for _ in tables]
    return max(counts)


def observed(instance: dg.DagsterInstance, asset: str) -> dict[str, list[str]]:
    """Partition → failed shards, by the newest event of a failure of it."""
    found: dict[str, list[str]] = {}
    for record in instance.fetch_observations(key(asset), limit=100).records:
        event = record.asset_observation
        assert event is not None
        assert event.partition is not None
        assert all(shard in (event.description or "") for shard in event.metadata)
        found.setdefault(event.partition, list(event.metadata))
    return found


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_block_is_named_by_its_range() -> None:
    shards = [f"p-{number:06d}" for number in (0, 1, 19, 20, 45)] + ["p-x01000007"]
    assert partitions_of_shards(shards, 1) == shards
    blocks = ["p-000000..000019", "p-000020..000039", "p-000040..000059", "p-x01000000..1000019"]
    assert partitions_of_shards(shards, 20) == blocks
    assert list(shards_of(blocks, lambda: shards[::-1]).values()) == [
        shards[:3],
        shards[3:4],
        shards[4:5],
        shards[5:],
    ]
    with pytest.raises(ValueError, match="shard key must match"):
        partition_of("p-1", 20)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_every_shard_is_in_one_block(size: int) -> None:
    numbers = random.Random(size).sample(range(3_000), 400)
    shards = [f"p-{number:06d}" for number in numbers]
    blocks = shards_of(partitions_of_shards(shards, size), lambda: shards)
    assert sorted(shard for found in blocks.values() for shard in found) == sorted(shards)
    assert max(map(len, blocks.values())) <= size
    assert all(partition_of(shard, size) == block for block, found in blocks.items() for shard in found)


def test_keys_that_hold_no_shard_are_old() -> None:
    known = ["p-000000", "p-000003..000005", "by hand", "p-000000..000009"]
    shards = ["p-000000", "p-000004"]
    assert new_and_old(known, shards, 1) == (["p-000004"], known[1:])
    assert new_and_old(known, shards, 3) == (["p-000000..000002"], [known[0], *known[2:]])
    assert new_and_old(known, shards, 10) == ([], known[:3])


def test_metadata_of_a_block_adds_up_and_keeps_every_sentence() -> None:
    first = {"rows kept": 2, "rows failed": 1, "compute seconds": 0.5, "reused": True, "preview": "a"}
    then = {"rows kept": 3, "compute seconds": 0.25, "reused": False, "preview": "b", "blocking checks": "passed"}
    both = together(together(None, first | {"blocking checks": "2 rows are lost"}), then | {"too few rows": "1 of 9"})
    assert both == {
        "rows kept": 5, "rows failed": 1, "compute seconds": 0.75, "reused": False, "preview": "b",
        "blocking checks": "2 rows are lost", "too few rows": "1 of 9",
    }  # fmt: skip
    assert together(then, then)["blocking checks"] == "passed"


# -- `curate run` -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_blocks_make_the_same_bytes_of_fewer_events_and_lineage_agrees(tmp_path: Path) -> None:
    found, counts = [], []
    for size in (1, 3):
        settings = pool_of(tmp_path / str(size), size)
        run_pool(settings, "photos")
        found.append(contents(settings))
        counts.append(events(settings))
        assert not [report.table for report in run_pool(settings, "photos") if report.computed]
        assert events(settings) == counts[-1], "nothing ran the second time"
        ctx = PoolContext.open(settings, "photos")
        edges = recorded_lineage(ctx, "filtered/icc").edges
        assert set(edges["dagster"]) == {"agrees"}
        assert len(set(edges["input_shard"].drop_nulls())) == 7
    assert found[0] == found[1]
    assert len(found[0]) > 70
    assert counts[1] < 0.75 * counts[0]
    with prepare_instance(settings) as instance:
        assert list(instance.get_dynamic_partitions("photos")) == BLOCKS
        assert instance.get_materialized_partitions(key("filtered/icc")) == set(BLOCKS)
        (record,) = instance.fetch_materializations(
            dg.AssetRecordsFilter(key("raw/samples"), asset_partitions=[BLOCKS[0]]), limit=5
        ).records
        event = record.asset_materialization
        assert event is not None
        shown = {name: value.value for name, value in event.metadata.items()}
    assert (shown["dagster/partition_row_count"], shown["rows kept"], shown["shards of this run"]) == (9, 9, "3 of 3")
    versions = {shard: ctx.store.manifest("raw/samples", shard).content_sha256 for shard in ctx.shards()[:3]}  # type: ignore[union-attr]
    assert shown["shards"] == versions


@pytest.mark.slow
def test_shards_that_a_person_names_are_made_and_no_others(tmp_path: Path) -> None:
    settings = pool_of(tmp_path, 3)
    run_pool(settings, "photos", shards=["1..4"], tables=RAW)
    assert made(settings) == ["1", "2", "3", "4"]
    run_pool(settings, "photos", shards=["0"], tables=RAW)
    assert made(settings) == ["0", "1", "2", "3", "4"]
    ctx = PoolContext.open(settings, "photos")
    with prepare_instance(settings) as instance:
        assert instance.get_materialized_partitions(key("raw/samples")) == set(BLOCKS[:2])
        records = materialisations(instance, ctx.pool, ["raw/samples"])
        newest = records.filter(pl.col("run_id") == records["run_id"][-1])
        assert newest["shard"].to_list() == ctx.shards()[:3], "a run of one shard of a block does not hide the others"
    run_pool(settings, "photos", shards=[BLOCKS[1]], tables=RAW)  # as the UI names it
    assert made(settings) == ["0", "1", "2", "3", "4", "5"]
    with prepare_instance(settings) as instance:
        # what misses in blocks that Dagster knows follows by itself; the third block is the scheduled backfill's
        assert next_step(ctx, instance, 0.0) == "waits for the scheduled backfill (0 * * * *) of 1 new shards"
    run_pool(settings, "photos", tables=RAW)
    assert made(settings) == list("0123456")


@pytest.mark.slow
def test_a_bad_shard_harms_no_neighbour_and_a_second_run_makes_the_rest(tmp_path: Path) -> None:
    settings = pool_of(tmp_path, 3)
    run_pool(settings, "photos", tables=RAW[:2])
    ctx = PoolContext.open(settings, "photos")
    flip_bit(ctx.store.table_path(RAW[0], "photos-000004"), random.Random(1))
    with pytest.raises(RunFailedError, match=r"raw/samples of shard photos-000004"):
        run_pool(settings, "photos", tables=RAW[2:])
    assert made(settings) == ["0", "1", "2", "3", "5", "6"]
    with prepare_instance(settings) as instance:
        assert observed(instance, "raw/samples") == {BLOCKS[1]: ["photos-000004"]}
        assert instance.get_materialized_partitions(key("raw/samples")) == {BLOCKS[0], BLOCKS[2]}
    ctx.store.remove(RAW[0], "photos-000004")
    reports = {report.table: report for report in run_pool(settings, "photos", tables=RAW)}
    assert (reports["raw/samples"].computed, reports["raw/samples"].reused) == (1, 6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_of_ten_shards_nine_are_made_and_failed_and_missing_makes_one(tmp_path: Path, size: int) -> None:
    """A run of the UI over ten shards, one of whose files is damaged, through three tables; partitions are shards, or
    blocks of two. What failed is shown as failed, nothing else; the run after it makes only that."""
    settings = pool_of(tmp_path, size, shards=10)
    run_pool(settings, "photos", tables=RAW[:2])
    ctx = PoolContext.open(settings, "photos")
    flip_bit(ctx.store.table_path(RAW[0], "photos-000004"), random.Random(1))
    bad = partition_of("photos-000004", size)
    names = ("raw/samples", "raw/provenance", "signals/icc")
    with prepare_instance(settings) as instance:
        partitions = list(instance.get_dynamic_partitions("photos"))

        def statuses(name: str) -> dict[str, str | None]:
            found = instance.get_status_by_partition(key(name), partitions, partitions_of("photos"))
            return {partition: status and status.value for partition, status in (found or {}).items()}

        def run(first: str, last: str) -> bool:
            job = build_definitions(settings).resolve_job_def("photos_shards")
            tags = {RANGE_START: first, RANGE_END: last}
            chosen = [key(name) for name in names]
            return job.execute_in_process(
                instance=instance, asset_selection=chosen, tags=tags, raise_on_error=False
            ).success

        assert not run(partitions[0], partitions[-1])
        expected = {partition: "FAILED" if partition == bad else "MATERIALIZED" for partition in partitions}
        assert [statuses(name) for name in names] == [expected] * 3
        assert observed(instance, "raw/samples") == {bad: ["photos-000004"]}
        assert made(settings, "signals/icc") == list("012356789"), "of its block, the other shard is made, too"
        records = materialisations(instance, ctx.pool, names)
        stored = {(table, shard): ctx.store.manifest(table, shard) for table in names for shard in ctx.shards()}
        assert {(row["table"], row["shard"]): row["content_sha256"] for row in records.to_dicts()} == {
            read: manifest.content_sha256
            for read, manifest in stored.items()
            if manifest is not None and partition_of(read[1], size) != bad
        }
        edges = recorded_lineage(ctx, "signals/icc").edges.filter(pl.col("shard") != "photos-000005")
        assert set(edges["dagster"]) == {"agrees"}, "5 is in the block of 4"
        (event,) = instance.fetch_materializations(
            dg.AssetRecordsFilter(key("signals/icc"), asset_partitions=partitions[:1]), limit=9
        ).records
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["dagster/partition_row_count"].value == PER_SHARD * size

        ctx.store.remove(RAW[0], "photos-000004")
        run_pool(settings, "photos", tables=RAW[:1])
        failed_and_missing = [
            partition for partition, status in statuses("signals/icc").items() if status != "MATERIALIZED"
        ]
        assert failed_and_missing == [bad]
        assert run(bad, bad)
        assert set(statuses("signals/icc").values()) == {"MATERIALIZED"}
        again = materialisations(instance, ctx.pool, names).filter(pl.col("storage_id") > records["storage_id"].max())
        assert {partition_of(shard, size) for shard in again["shard"]} == {bad}


@pytest.mark.slow
def test_shards_that_pass_a_blocking_check_go_on(tmp_path: Path) -> None:
    """One shard of three holds no image that can be decoded: what reads it is made of the two others."""
    settings = pool_of(tmp_path, 1, shards=3)
    rows = [(f"{n:06d}", url_of(n), caption_of(n), b"no jpeg") for n in range(PER_SHARD, 2 * PER_SHARD)]
    write_tar(tmp_path / "tars" / "000001.tar", rows)
    path = settings.pools_root / "photos.yaml"
    path.write_text(path.read_text() + "  min_success_rate: 0.75\n")
    with pytest.raises(RunFailedError, match=r"^raw/samples of shard photos-000001: only 0.0%"):
        run_pool(settings, "photos", tables=[*RAW, "raw/provenance", "signals/icc"])
    assert (made(settings), made(settings, "signals/icc")) == (["0", "1", "2"], ["0", "2"])
    with prepare_instance(settings) as instance:
        assert instance.get_materialized_partitions(key("signals/icc")) == {"photos-000000", "photos-000002"}
        check = dg.AssetCheckKey(key("signals/icc"), "rows_conserved")
        newest = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)[0]
        assert newest.status.value == "SUCCEEDED"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2)])
def test_another_size_changes_the_partitions_and_makes_nothing_again(tmp_path: Path, before: int, after: int) -> None:
    """Events of the partitions before stay, and are read; those of now are written by the next run."""
    settings = pool_of(tmp_path, before)
    run_pool(settings, "photos", tables=RAW)
    set_size(settings, after)
    ctx = PoolContext.open(settings, "photos")
    with prepare_instance(settings) as instance:
        sensor = shard_sensor(settings, "photos")
        ticked = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(ticked, dg.SensorResult)
        changes = [(type(one).__name__[:3], one.partition_keys) for one in ticked.dynamic_partitions_requests or []]
        now = partitions_of_shards(ctx.shards(), after)
        old = [one for one in partitions_of_shards(ctx.shards(), before) if one not in now]
        assert [(kind, set(keys)) for kind, keys in changes] == [
            ("Del", set(old)),
            ("Add", set(now) - set(partitions_of_shards(ctx.shards(), before))),
        ]
    reports = run_pool(settings, "photos", tables=RAW)
    assert not [report.table for report in reports if report.computed]
    with prepare_instance(settings) as instance:
        assert set(instance.get_dynamic_partitions("photos")) == set(now)
        assert instance.get_materialized_partitions(key("raw/samples")) >= set(now)
        records = materialisations(instance, ctx.pool, ["raw/samples"])
        assert isinstance(sensor(dg.build_sensor_context(instance=instance)), dg.SkipReason)
    assert records.group_by("shard").len()["len"].to_list() == [2] * 7
    assert records["content_sha256"].n_unique() == 7


@pytest.mark.slow
def test_a_removed_shard_leaves_its_block_while_that_holds_others(tmp_path: Path) -> None:
    settings = pool_of(tmp_path, 3)
    run_pool(settings, "photos", tables=RAW)
    for number, left in ((4, BLOCKS), (6, BLOCKS[:2])):
        (tmp_path / "tars" / f"{number:06d}.tar").unlink()
        call = ["pool", "remove-shard", "photos", f"photos-{number:06d}", "--home", str(tmp_path)]
        result = curate(*call)
        assert result.exit_code == 0, result.output
        with prepare_instance(settings) as instance:
            assert list(instance.get_dynamic_partitions("photos")) == left
    run_pool(settings, "photos", tables=RAW)
    assert made(settings) == ["0", "1", "2", "3", "5"]


# -- jobs, sensors and schedules --------------------------------------------------------------------------------------


def run_job(settings: Settings, instance: dg.DagsterInstance, names: Sequence[str], **given: Any) -> None:
    job = build_definitions(settings).get_repository_def().get_job("photos_shards")
    done = job.execute_in_process(instance=instance, asset_selection=[key(name) for name in names], **given)
    assert done.success


@pytest.mark.slow
def test_a_job_of_the_ui_makes_a_block_and_what_came_later_follows(tmp_path: Path) -> None:
    settings = pool_of(tmp_path, 3)
    sensor = shard_sensor(settings, "photos")
    with prepare_instance(settings) as instance:
        ticked = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(ticked, dg.SensorResult)
        (request,) = ticked.dynamic_partitions_requests or ()
        assert request.partition_keys == BLOCKS
        instance.add_dynamic_partitions("photos", request.partition_keys)
        run_job(settings, instance, RAW, partition_key=BLOCKS[1])
        assert made(settings) == ["3", "4", "5"]
        run_job(settings, instance, RAW, tags={RANGE_START: BLOCKS[0], RANGE_END: BLOCKS[2]})
        assert made(settings) == list("0123456")
        add_tar(tmp_path, 7)  # of the third block, which Dagster has seen made
        skipped = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(skipped, dg.SkipReason)
        assert skipped.skip_message == f"8 shards known, in 3 partitions of up to 3, none new{EDITS}"
        ctx = PoolContext.open(settings, "photos")
        step = next_step(ctx, instance, datetime.datetime.now().timestamp() + LATER)
        assert isinstance(step, Step)
        assert (step.tables[0], step.grain) == (RAW[0], "shard")
        (request,) = requests_of(ctx.pool, Step(RAW, "shard", ("photos-000007",), "s"), BLOCKS)
        assert (request.tags[RANGE_START], request.tags[RANGE_END]) == (BLOCKS[2], BLOCKS[2])
        assert partitions_per_run(32, ctx.pool) == 10
        assert partitions_per_run(2, ctx.pool) == 1
        assert partitions_per_run(0, ctx.pool) == 0
        run_job(settings, instance, RAW, tags=request.tags)
        instance.add_dynamic_partitions("photos", ["photos-000009..000011"])
        run_job(settings, instance, RAW, partition_key="photos-000009..000011")  # of which no shard has come
    assert made(settings) == list("01234567")


@pytest.mark.slow
def test_the_scheduled_backfill_requests_missing_blocks(tmp_path: Path) -> None:
    """All tables in one run, though no check of theirs has passed yet."""
    settings = pool_of(tmp_path, 3)
    definitions = build_definitions(settings)
    start = datetime.datetime(2026, 1, 1, 0, 30, tzinfo=datetime.UTC)
    with prepare_instance(settings) as instance:
        instance.add_dynamic_partitions("photos", BLOCKS)

        def requested(hour: int) -> list[set[str]]:
            begin = start + datetime.timedelta(hours=hour)
            quiet = dg.evaluate_automation_conditions(definitions, instance, evaluation_time=begin)
            hourly = dg.evaluate_automation_conditions(
                definitions, instance, evaluation_time=begin + datetime.timedelta(minutes=31), cursor=quiet.cursor
            )
            return [set(hourly.get_requested_partitions(key(name)) or ()) for name in RAW]

        assert requested(0) == [set(BLOCKS)] * 3
        run_job(settings, instance, RAW, partition_key=BLOCKS[1])
        assert requested(1) == [{BLOCKS[0], BLOCKS[2]}] * 3


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_daemon_makes_blocks_names_a_bad_shard_and_goes_on_once_it_is_mended(tmp_path: Path) -> None:
    """Real sensors and schedules: a tar into a block that was made, and a new block of which one shard is damaged."""
    settings = pool_of(tmp_path, 3, shards=4)
    declaration = settings.pools_root / "photos.yaml"
    text = declaration.read_text(encoding="utf-8")
    declaration.write_text(text.replace("options:", "options:\n  backfill_cron: '* * * * *'\n  quiet_minutes: 0.01"))
    run_pool(settings, "photos")
    for shard in (4, 6, 7, 8):
        add_tar(tmp_path, shard)
    ctx = PoolContext.open(settings, "photos")
    tables, bad = tables_of(ctx), "photos-000007"
    for name in RAW[:2]:
        materialise_table(ctx, tables[name], bad, tables=tables)
    flip_bit(ctx.store.table_path(RAW[0], bad), random.Random(1))
    with prepare_instance(settings) as instance, running_daemon(settings, is_quick=True) as wait_until:
        wait_until(lambda: observed(instance, RAW[0]) == {BLOCKS[2]: [bad]})
        assert {"6", "7", "8"} <= set(made(settings, RAW[0])), "its neighbours are kept"
        assert BLOCKS[2] not in instance.get_materialized_partitions(key(RAW[0]))
        ctx.store.remove(RAW[0], bad)
        wait_until(lambda: next_step(ctx, instance, datetime.datetime.now().timestamp()) == "up to date with 8 shards")
        assert set(instance.get_dynamic_partitions("photos")) == set(BLOCKS)
        for name in ("raw/samples", "filtered/icc"):
            assert instance.get_materialized_partitions(key(name)) == set(BLOCKS)
    judged = pl.concat(recorded_ledger(ctx.store, "icc").parts(["shard"]))["shard"].unique()
    assert [shard[-1] for shard in sorted(judged)] == list("01234678")
