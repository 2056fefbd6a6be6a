"""The flow: declarations are complete, ordered and forward; phases take turns."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from curation_assets.cli.run import TableLines
from curation_assets.core.settings import Settings, load_settings
from curation_assets.core.stages import BackwardsReadError, check_reads_forward, stage_position
from curation_assets.defs.launch import phases, run_pool
from curation_assets.flow.conservation import _commonest_reasons, success_rate, success_violations, violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import _sorted_by_inputs, tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.flow.table import Folder, Table, TableReport
from curation_assets.operations.removed_shards import missing_shards, remove_shards
from curation_assets.sources.declaration import add_pool, add_world_pool
from curation_assets.stores.shard_store import ShardStore
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos, jpeg, webdataset_pool, write_tar


def _table(name: str, *inputs: str, grain: str = "pool", **facts: object) -> Table:
    return Table(
        name=name,
        grain=grain,  # type: ignore[arg-type]
        inputs=inputs,
        version="1",
        description="",
        compute=lambda ctx: pl.DataFrame({"x": [1]}),
        **facts,  # type: ignore[arg-type]
    )


@pytest.fixture
def settings(tmp_path) -> Settings:  # type: ignore[no-untyped-def]
    return load_settings(tmp_path, "embedded")


@pytest.fixture
def ctx(settings: Settings) -> PoolContext:
    add_world_pool(settings, "tiny", size=20, seed=1, shard_size=10)
    return PoolContext.open(settings, "tiny")


def test_reading_against_the_flow_is_refused() -> None:
    check_reads_forward("signals/icc", "distilled/icc_student")
    with pytest.raises(BackwardsReadError, match="against the flow"):
        check_reads_forward("raw/samples", "signals/icc")
    with pytest.raises(BackwardsReadError):
        _table("teachers/early", "filtered/random")


def test_every_table_comes_after_its_inputs(ctx: PoolContext) -> None:
    seen: set[str] = set()
    for name, table in tables_of(ctx).items():
        assert seen.issuperset(table.inputs), name
        seen.add(name)
    assert {"raw/samples", "signals/icc", "fused/sieve_clip", "filtered/icc", "downstream/report"} <= seen


def test_missing_input_and_circle_are_named() -> None:
    with pytest.raises(ValueError, match="no stage of this pool provides"):
        _sorted_by_inputs({"raw/a": _table("raw/a", "raw/nothing")})
    with pytest.raises(ValueError, match="circle"):
        _sorted_by_inputs({"raw/a": _table("raw/a", "raw/b"), "raw/b": _table("raw/b", "raw/a")})


def test_phases_take_turns_and_respect_inputs() -> None:
    tables = [
        _table("raw/a", grain="shard"),
        _table("raw/b", "raw/a", grain="shard"),
        _table("standardised/c", "raw/b"),
        _table("signals/d", "standardised/c", grain="shard"),
        _table("fused/e", "signals/d"),
    ]
    named = [[table.name for table in phase] for phase in phases(tables)]
    assert named == [["raw/a", "raw/b"], ["standardised/c"], ["signals/d"], ["fused/e"]]
    assert [[t.name for t in p] for p in phases(tables, only=["signals/d"])] == [["signals/d"]]


@pytest.mark.parametrize("kind", ["urls", "captions", "world"])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["finished", "stopped half way"])
def test_lines_of_tables_follow_the_stages(
    tmp_path: Path, kind: str, is_stopped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """In whatever order a run finishes tables: each has its line, and none comes before one of an earlier stage."""
    settings = load_settings(tmp_path, "embedded")
    if kind == "world":
        add_world_pool(settings, "pool", size=10, seed=0)
    else:
        urls = {"url": [f"http://host.example/{number}.jpg" for number in range(2)]} if kind == "urls" else {}
        pl.DataFrame({"caption": ["a", "b"], **urls}).write_csv(tmp_path / "table.csv")
        add_pool(settings, "pool", tmp_path / "table.csv", options={"duplicates": {"cosine": 0.9}} if urls else {})
    tables = tables_of(PoolContext.open(settings, "pool"))
    assert [table.stage for table in tables.values()] == sorted(
        (table.stage for table in tables.values()), key=stage_position
    )
    finished = [table.name for phase in phases(list(tables.values())) for table in phase]
    finished = finished[: len(finished) // 2] if is_stopped else finished
    with TableLines(tables, tables) as lines:
        for name in finished:
            lines.add(TableReport(name, 1.0, 2, 0, 1))
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(shown) == sorted(finished)
    stages = [stage_position(name.partition("/")[0]) for name in shown]
    assert stages == sorted(stages)


def test_tables_named_alike_are_told_apart_where_people_read_them(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, "embedded")
    pl.DataFrame({"caption": ["a"], "url": ["http://host.example/1.jpg"]}).write_csv(tmp_path / "table.csv")
    add_pool(settings, "pool", tmp_path / "table.csv", options={"duplicates": {"cosine": 0.9}})
    titles = {table.title for name, table in tables_of(PoolContext.open(settings, "pool")).items() if "/dup" in name}
    assert titles == {"filtered/duplicates (same sample again)", "fused/duplicates (near-duplicates)"}


def test_lost_and_repeated_rows_are_found(ctx: PoolContext) -> None:
    def samples(ids: list[str], reasons: list[str | None]) -> pl.DataFrame:
        status = ["kept" if reason is None else "failed" for reason in reasons]
        return pl.DataFrame(
            {"sample_id": ids, "source_row": range(len(ids)), "status": status, "reason": reasons},
            schema_overrides={"reason": pl.String},
        )

    upstream = _table("raw/registered_shards", grain="shard")
    table = _table("raw/samples", "raw/registered_shards", grain="shard", continues="raw/registered_shards")
    tables = {upstream.name: upstream, table.name: table}
    ctx.store.write("raw/registered_shards", samples(["a", "b"], [None, None]), "tiny-000000", code_version="1")
    cases = {
        (): samples(["a", "b"], [None, "http_404"]),
        ("1 rows, but raw/registered_shards has 2",): samples(["a"], [None]),
        ("1 rows repeat an earlier row's identity",): samples(["a", "a"], [None, None]).with_columns(
            source_row=pl.lit(0)
        ),
        ("1 rows are dropped or failed without a reason",): samples(["a", "b"], [None, "x"]).with_columns(
            reason=pl.lit(None, dtype=pl.String)
        ),
    }
    for expected, frame in cases.items():
        ctx.store.write("raw/samples", frame, "tiny-000000", code_version="1")
        assert tuple(violations(ctx, tables["raw/samples"], "tiny-000000")) == expected


def test_unchanged_table_is_reused_and_a_new_version_is_not(ctx: PoolContext) -> None:
    calls = []

    def declared(version: str) -> Table:
        def compute(ctx: PoolContext) -> pl.DataFrame:
            calls.append(version)
            return pl.DataFrame({"x": [1.0]})

        return Table("fused/t", "pool", (), version, "", compute=compute)

    for version in ("1", "1", "2"):
        materialise_table(ctx, declared(version), tables={})
    assert calls == ["1", "2"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_writer_of_fewer_shards_does_not_replace_the_table_of_a_later_one(ctx: PoolContext, is_folder: bool) -> None:
    """A backfill counts one shard; while it does, a run adds another one and stores the count of both."""
    counted: list[int] = []

    def count(ctx: PoolContext) -> int:
        found = len(ctx.store.partitions("raw/samples"))
        counted.append(found)
        if len(counted) == 1:  # the other process, from beginning to end
            ctx.store.write("raw/samples", pl.DataFrame({"x": [2.0]}), "tiny-000001", code_version="1")
            assert not materialise_table(ctx, counts, tables=tables).is_reused
        return found

    def compute(ctx: PoolContext) -> pl.DataFrame:
        return pl.DataFrame({"shards": [count(ctx)]})

    def compute_folder(ctx: PoolContext, folder: Path) -> None:
        (folder / "shards.txt").write_text(str(count(ctx)))

    made = Folder(compute_folder) if is_folder else compute
    counts = Table("raw/counts", "pool", ("raw/samples",), "1", "", made)
    tables = {"raw/samples": _table("raw/samples", grain="shard"), counts.name: counts}
    ctx.store.write("raw/samples", pl.DataFrame({"x": [1.0]}), "tiny-000000", code_version="1")
    assert materialise_table(ctx, counts, tables=tables).is_reused
    folder = ctx.store.asset_path("raw/counts")
    stored = (folder / "shards.txt").read_text() if is_folder else ctx.store.read("raw/counts")["shards"].item()
    assert int(stored) == 2
    assert counted == [1, 2]


def test_grain_and_shard_must_agree(ctx: PoolContext) -> None:
    with pytest.raises(ValueError, match="grain"):
        materialise_table(ctx, _table("raw/a", grain="shard"), None, tables={})


def test_planted_truth_is_read_by_the_downstream_stage_only() -> None:
    """No method, teacher, student or recipe may see what was planted."""
    import curation_assets

    package = Path(curation_assets.__file__).parent
    readers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "planted.parquet" in path.read_text() or "read_truth(" in path.read_text()
    }
    # the declaration of a world and the planting of noise write it
    writers = {"sources/kinds/world.py", "sources/noisy_photos.py"}
    stage = {f"evaluation/{name}.py" for name in ("truth", "tables", "training_sets", "evaluation_set")}
    assert readers == {*stage, *writers}


def test_too_few_successes_are_a_violation_and_rows_not_at_stake_do_not_count(ctx: PoolContext) -> None:
    def signal(values: list[float | None], reasons: list[str | None]) -> pl.DataFrame:
        schema = {"value": pl.Float64, "reason": pl.String}
        return pl.DataFrame({"value": values, "reason": reasons}, schema=schema)

    upstream = "upstream_failed:download_http_404"
    assert success_rate(signal([1.0, None, None, None], [None, upstream, "no_image", "image_truncated"])) == 0.5
    assert success_rate(signal([None], [upstream])) is None
    assert success_rate(pl.DataFrame({"x": [1]})) is None
    downloads = pl.DataFrame({"status": ["kept", "failed", "dropped", "failed"], "reason": [None, "a", "b", "c"]})
    assert success_rate(downloads) == pytest.approx(1 / 3)

    table = _table("signals/icc", "raw/samples", grain="shard")
    ctx.store.write("signals/icc", signal([0.5] + [None] * 19, [None] + ["x"] * 19), "tiny-000000", code_version="1")
    (sentence,) = success_violations(ctx, table, "tiny-000000")
    assert "5.0%" in sentence
    assert "10.0%" in sentence
    ctx.store.write(
        "signals/icc", signal([0.5] * 2 + [None] * 18, [None] * 2 + ["x"] * 18), "tiny-000000", code_version="1"
    )
    assert success_violations(ctx, table, "tiny-000000") == []


def test_the_floor_is_the_pools_own(settings: Settings) -> None:
    for name, floor in (("low", 0), ("high", 0.9)):
        add_world_pool(settings, name, size=20, seed=1, shard_size=10, options={"min_success_rate": floor})
        assert PoolContext.open(settings, name).options.min_success_rate == floor
    with pytest.raises(ValueError, match=r"min_success_rate must be a number in \[0, 1\], got 90"):
        add_world_pool(settings, "odd", size=20, seed=1, shard_size=10, options={"min_success_rate": 90})


def test_verdicts_that_lost_a_row_are_found(tmp_path: Path) -> None:
    ready = finished_photos(tmp_path)
    table, shard = tables_of(ready)["filtered/icc"], "photos-000001"
    assert violations(ready, table, shard) == []
    ready.store.write(table.name, ready.store.read(table.name, shard)[1:], shard, code_version="wrong")
    assert violations(ready, table, shard) == ["7 rows, but raw/samples has 8"]


def test_a_table_of_all_rows_is_checked_without_being_read_whole(
    ctx: PoolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost, doubled and silent rows of a table of the whole pool."""
    run_with_upstream(ctx, "raw/samples")
    read = ShardStore.read

    def of_shard(store: ShardStore, asset: str, partition: str, *columns: list[str]) -> pl.DataFrame:
        return read(store, asset, partition, *columns)  # whole tables have no shard: a TypeError

    monkeypatch.setattr(ShardStore, "read", of_shard)
    table = _table("fused/near", "raw/samples", continues="raw/samples")
    columns = ["sample_id", "shard", "source_row"]
    whole = ctx.store.scan("raw/samples").select(*columns, quality=1.0, reason=pl.lit(None, pl.String)).collect()
    numbers = pl.int_range(whole.height)

    def found(rows: pl.DataFrame) -> list[str]:
        ctx.store.write(table.name, rows, code_version="1")
        return violations(ctx, table, None)

    assert found(whole) == found(whole.reverse()) == []
    assert found(whole[1:]) == ["19 rows, but raw/samples has 20"]
    assert found(pl.concat([whole[1:], whole[-1:]])) == ["1 rows repeat an earlier row's identity"]
    silent = whole.with_columns(quality=pl.when(numbers > 1).then("quality"))
    assert found(silent) == ["2 rows have no quality and no reason"]
    reasons = ["no_image", "b: c", "a", "a"]
    failed = whole.with_columns(
        quality=pl.when(numbers > 3).then("quality"), reason=pl.Series([*reasons, *[None] * (whole.height - 4)])
    )
    assert found(failed) == []
    assert success_rate(ctx.store.scan(table.name)) == 16 / 19
    assert _commonest_reasons(ctx.store.scan(table.name), "mine") == "a 2, b: c 1"
    refused = _commonest_reasons(pl.DataFrame({"reason": ["url_refused:private"]}), "mine")
    assert "`curate pool set mine allow_hosts=HOST:PORT`" in refused


def test_a_subset_that_holds_more_than_its_policy_keeps_is_found(tmp_path: Path) -> None:
    ready = finished_photos(tmp_path)
    subsets = tables_of(ready)["filtered/subsets"]
    assert violations(ready, subsets, None) == []
    npy = ready.store.folder_path("filtered/subsets") / "icc.npy"
    np.save(npy, np.repeat(np.load(npy), 2))
    assert violations(ready, subsets, None) == ["icc keeps 6 entries, its npy 12"]


@pytest.mark.slow
def test_a_shard_whose_source_is_gone_counts_until_it_is_removed(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=3, per_shard=6)
    declaration = settings.pools_root / "photos.yaml"
    declaration.write_text(declaration.read_text().replace("options:\n", "options:\n  policies: [random]\n"))
    raw = ["raw/registered_shards", "raw/downloads", "raw/samples"]
    verdicts = ["filtered/duplicates", "filtered/random_cut", "filtered/random"]
    tables = [*raw, *verdicts, "filtered/overlaps", "filtered/subsets"]
    run_pool(settings, "photos", tables=tables)
    ctx = PoolContext.open(settings, "photos")
    before = ctx.store.scan("filtered/random").collect()
    assert missing_shards(ctx) == []
    (tmp_path / "tars" / "000001.tar").unlink()
    run_pool(settings, "photos", tables=tables)
    assert missing_shards(ctx) == ["photos-000001"]
    assert ctx.store.scan("filtered/random").collect().equals(before)

    # It is judged by a new cut as the others are, and is in nobody's way when a shard comes.
    declaration.write_text(declaration.read_text().replace("fraction: 0.25", "fraction: 0.5"))
    rows = [(f"{n:06d}", f"http://a.example/{n}.jpg", f"late thing {n}", jpeg(n)) for n in range(100, 106)]
    write_tar(tmp_path / "tars" / "000003.tar", rows)
    run_pool(settings, "photos", tables=tables)
    halved = ctx.store.scan("filtered/random").collect()
    kept = halved.filter(pl.col("verdict") == "kept").group_by("shard").len().sort("shard")
    assert kept["shard"].to_list() == [f"photos-{number:06d}" for number in range(4)]
    assert kept["len"].sum() == 11  # of 22 that raw kept

    with pytest.raises(ValueError, match=r"photos-000000 cannot be removed.*which are: photos-000001\."):
        remove_shards(ctx, ["photos-000000", "photos-000001"])
    output = curate("pool", "remove-shard", "photos", "photos-000001", home=settings.home)
    assert output.exit_code == 0, output.output
    assert "4 tables of 1 shards removed" in output.stdout
    assert not list(settings.work("photos").rglob("*000001*"))
    reports = run_pool(settings, "photos", tables=tables)
    assert {report.table for report in reports if report.computed}.isdisjoint({*raw, *verdicts[1:]})
    assert ctx.store.scan("filtered/random").collect().equals(halved.filter(pl.col("shard") != "photos-000001"))
    subset = np.load(ctx.store.folder_path("filtered/subsets") / "random.npy")
    assert len(subset) == kept.filter(pl.col("shard") != "photos-000001")["len"].sum()
