"""One table brought up to date: bad shards are named and kept apart, checks block or warn, finished shards stay."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.core.table_names import DOWNLOADS, SAMPLES
from curation_assets.flow import run_table as run_table_module
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import upstream_code_digest
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import checks_of, keys_of, run_table, run_with_upstream
from curation_assets.flow.table import Needs, Shown, Table, TableCheck, Trainings
from curation_assets.sources.declaration import add_pool, add_world_pool
from tests.support.lineage_pools import finished_photos, jpeg, write_tar

SHARDS = ["tiny-000000", "tiny-000001", "tiny-000002"]


@pytest.fixture
def ctx(tmp_path: Path) -> PoolContext:
    settings = load_settings(tmp_path, "embedded")
    add_world_pool(settings, "tiny", size=30, seed=1, shard_size=10, options={"min_success_rate": 0.5})
    return PoolContext.open(settings, "tiny", run_id="run-1")


def values(rows: list[float | None], reason: str | None = "broken") -> pl.DataFrame:
    reasons = [None if value is not None else reason for value in rows]
    return pl.DataFrame({"value": rows, "reason": reasons}, schema={"value": pl.Float64, "reason": pl.String})


def signal(compute: Callable[[PoolContext, str | None], pl.DataFrame], version: str = "1", **facts: object) -> Table:
    return Table("signals/t", "shard", (), version, "", compute=compute, **facts)  # type: ignore[arg-type]


def test_a_bad_shard_is_named_and_harms_no_neighbour(ctx: PoolContext) -> None:
    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        if shard == SHARDS[1]:
            raise OSError("disk on fire")
        return values([1.0, None])

    heard: list[tuple[str | None, int | None]] = []
    result = run_table(
        ctx,
        signal(compute),
        SHARDS,
        tables={},
        on_shard=lambda one, frame: heard.append((one.shard, None if frame is None else frame.height)),
    )
    assert heard == [(SHARDS[0], 2), (SHARDS[1], None), (SHARDS[2], 2)]
    assert [repr(error) for error in result.errors.values()] == ["OSError('disk on fire')"]
    assert [sentence for sentence, _ in result.problems] == ["signals/t of shard tiny-000001: disk on fire"]
    assert ctx.store.partitions("signals/t") == [SHARDS[0], SHARDS[2]]
    assert result.checks == []  # of a table that is not whole
    report = result.report
    assert (report.table, report.row_count, report.computed, report.reused) == ("signals/t", 4, 2, 0)


class Recorder:
    """Writes down what is begun and how much of it is done."""

    def __init__(self) -> None:
        self.events: list[object] = []

    @contextmanager
    def task(self, label: str, total: int) -> Iterator[Callable[[float], None]]:
        self.events.append((label, total))
        yield self.events.append

    def note(self, line: str) -> None:
        pass


def test_a_stored_shard_that_was_damaged_since_is_named_and_harms_no_neighbour(ctx: PoolContext) -> None:
    table = signal(lambda ctx, shard: values([1.0, None]))
    assert not run_table(ctx, table, SHARDS[:2], tables={}).errors
    path = ctx.store.table_path(table.name, SHARDS[0])
    path.write_bytes(path.read_bytes().replace(b"broken", b"brokem"))
    result = run_table(ctx, table, SHARDS, tables={})
    assert list(result.errors) == SHARDS[:1]
    assert [done.manifest.partition for done in result.finished] == SHARDS[1:]
    assert SHARDS[0] in result.problems[0][0]


@pytest.mark.parametrize(
    ("table", "label", "total"),
    [
        (signal(lambda ctx, shard: values([1.0])), "signals/t, shards", 3),
        (Table("filtered/t", "shard", (), "1", "", compute=lambda ctx, shard: values([1.0])), "filtered/t, shards", 3),
        (signal(lambda ctx, shard: values([1.0]), needs=Needs(at_once=2)), "signals/t, shards", 3),
        (Table("fused/t", "pool", (), "1", "", compute=lambda ctx: values([1.0])), "fused/t", 1),
        (
            Table(
                "downstream/t",
                "training",
                (),
                "1",
                "",
                compute=lambda ctx, shard: values([1.0]),
                trainings=Trainings(("a-000000", "b-000000")),
            ),
            "downstream/t, models",
            2,
        ),
    ],
    ids=["signals", "in threads", "downloads", "whole pool", "trainings"],
)
def test_every_table_is_announced_before_it_is_computed_and_counted_to_its_end(
    ctx: PoolContext, table: Table, label: str, total: int
) -> None:
    recorder = Recorder()

    def compute(ctx: PoolContext, *key: str) -> pl.DataFrame:
        recorder.events.append("computed")
        return values([1.0])

    one_process = replace(ctx, settings=replace(ctx.settings, workers=1), progress=recorder)
    run_table(one_process, replace(table, compute=compute), keys_of(table, SHARDS), tables={})
    assert recorder.events[0] == (label, total)
    assert recorder.events.count("computed") == total
    assert sum(event for event in recorder.events if isinstance(event, int | float)) == total


def test_a_shard_that_breaks_a_blocking_check_is_blocked_until_it_holds(ctx: PoolContext) -> None:
    frames = dict(zip(SHARDS, (values([1.0]), values([None, 1.0], None), values([None, None])), strict=True))

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        assert shard is not None
        return frames[shard]

    result = run_table(ctx, signal(compute), SHARDS, tables={})
    assert not result.errors
    conserved, succeeded = result.checks
    assert (conserved.check.name, conserved.check.is_blocking, conserved.passed) == ("rows_conserved", True, False)
    assert conserved.violations == {SHARDS[1]: "1 rows have no value and no reason"}
    assert succeeded.violations.keys() == {SHARDS[2]}
    assert succeeded.violations[SHARDS[2]].startswith("only 0.0% of the rows succeeded")
    assert [error for _, error in result.problems] == [None, None]
    assert ctx.store.blocked("signals/t").keys() == {SHARDS[1], SHARDS[2]}

    frames = dict.fromkeys(SHARDS, values([1.0]))
    mended = run_table(ctx, signal(compute, version="2"), SHARDS, tables={})
    assert all(check.passed for check in mended.checks)
    assert ctx.store.blocked("signals/t") == {}
    again = run_table(ctx, signal(compute, version="2"), SHARDS, tables={})
    assert (again.report.computed, again.report.reused) == (0, 3)


def test_a_shard_without_a_usable_row_stops_no_other_while_the_pool_has_enough(ctx: PoolContext) -> None:
    """It is named, and heard of when all shards are done; alone, or with a pool below its floor, it blocks."""
    good, bad = values([1.0] * 4), values([None, None])
    frames = {SHARDS[0]: bad, SHARDS[1]: good, SHARDS[2]: good}

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        assert shard is not None
        return frames[shard]

    alone = run_table(ctx, signal(compute), SHARDS[:1], tables={})
    assert [sentence[:30] for sentence, _ in alone.problems] == ["signals/t of shard tiny-000000"]
    assert ctx.store.blocked("signals/t").keys() == {SHARDS[0]}
    others = run_table(ctx, signal(compute), SHARDS[1:], tables={})
    assert (others.problems, others.warnings) == ([], [])
    assert ctx.store.blocked("signals/t") == {}, "8 of 10 rows of the pool succeeded by then"
    heard: list[str | None] = []
    whole = run_table(ctx, signal(compute), SHARDS, tables={}, on_shard=lambda one, frame: heard.append(one.shard))
    assert whole.problems == []
    assert all(check.passed for check in whole.checks)
    assert len(whole.warnings) == 1
    assert whole.warnings[0].startswith("signals/t of shard tiny-000000: only 0.0% of the rows succeeded")
    assert heard == [*SHARDS[1:], SHARDS[0]]
    frames = {SHARDS[0]: bad, SHARDS[1]: bad, SHARDS[2]: good}
    enough = run_table(ctx, signal(compute, version="2"), SHARDS, tables={})
    assert (len(enough.problems), len(enough.warnings)) == (0, 2), "half is the floor of this pool"
    frames = {SHARDS[0]: values([None] * 5), SHARDS[1]: bad, SHARDS[2]: good}
    below = run_table(ctx, signal(compute, version="3"), SHARDS, tables={})
    assert (len(below.problems), below.warnings) == (2, [])
    assert ctx.store.blocked("signals/t").keys() == set(SHARDS[:2])


def _broken_images(place: Path) -> dict[str, Any]:
    for shard, images in enumerate(([jpeg(n) for n in range(4)], [b"no jpeg"] * 4)):
        rows = [(f"{n:06d}", f"http://a.example/{shard}{n}", f"thing {shard}{n}", images[n]) for n in range(4)]
        write_tar(place / "tars" / f"{shard:06d}.tar", rows)
    return {"path": place / "tars"}


def _empty_tar(place: Path) -> dict[str, Any]:
    write_tar(place / "tars" / "000000.tar", [("0", "http://a.example/0", "a thing", jpeg(0))])
    write_tar(place / "tars" / "000001.tar", [])
    return {"path": place / "tars"}


def _no_tar(place: Path) -> dict[str, Any]:
    write_tar(place / "tars" / "000000.tar", [("0", "http://a.example/0", "a thing", jpeg(0))])
    (place / "tars" / "000001.tar").write_bytes(b"no tar at all")
    return {"path": place / "tars"}


def _blank_captions(place: Path) -> dict[str, Any]:
    for shard, caption in enumerate(("a thing", " ")):
        rows = [(f"{n}", f"http://a.example/{shard}{n}", caption, jpeg(10 * shard + n)) for n in range(2)]
        write_tar(place / "tars" / f"{shard:06d}.tar", rows)
    return {"path": place / "tars"}


def _empty_csv(place: Path) -> dict[str, Any]:
    (place / "tables").mkdir()
    (place / "tables" / "0.csv").write_text("url,caption\nhttp://127.0.0.1/0.jpg,a thing\n")
    (place / "tables" / "1.csv").write_text("url,caption\n")
    return {"path": place / "tables", "columns": {"url": None}}


def _images_of_parquet(place: Path) -> dict[str, Any]:
    images = [{"bytes": data, "path": None} for data in [*(jpeg(n) for n in range(4)), *[b"no jpeg"] * 4]]
    table = pa.table({"image": images, "caption": [f"thing {n}" for n in range(8)]})
    pq.write_table(table, place / "images.parquet", row_group_size=4)
    return {"path": place / "images.parquet", "shard_size": 4}


def _dead_links(place: Path) -> dict[str, Any]:
    """The second shard's folder of images is missing."""
    (place / "images").mkdir()
    lines = ["image,caption"]
    for number in range(8):
        if number < 4:
            (place / "images" / f"{number}.jpg").write_bytes(jpeg(number))
        lines.append(f"{number}.jpg,thing {number}")
    (place / "images" / "captions.csv").write_text("\n".join(lines) + "\n")
    return {"path": place / "images", "shard_size": 4}


@pytest.mark.parametrize(
    "source",
    [_broken_images, _empty_tar, _no_tar, _blank_captions, _empty_csv, _images_of_parquet, _dead_links],
    ids=lambda source: source.__name__.strip("_"),
)
def test_a_part_of_a_source_without_a_usable_row_holds_up_no_verdict(
    tmp_path: Path, source: Callable[[Path], dict[str, Any]]
) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    declared = source(tmp_path)
    add_pool(settings, "photos", declared.pop("path"), options={"distil": False, "downstream": False}, **declared)
    ctx = PoolContext.open(settings, "photos")
    run_with_upstream(ctx, "filtered/duplicates")
    assert ctx.store.blocked("raw/samples") == {}
    rows = pl.concat([ctx.store.read("raw/samples", shard) for shard in ctx.shards()])
    assert rows.height == sum(ctx.store.read("raw/registered_shards", shard).height for shard in ctx.shards())
    assert (rows["status"] == "kept").any()
    assert rows.filter(pl.col("status") != "kept")["reason"].null_count() == 0


def test_what_a_table_warns_of_stops_nothing(ctx: PoolContext) -> None:
    def compute(ctx: PoolContext) -> pl.DataFrame:
        return pl.DataFrame({"n": [1, 2], "warning": [None, "few rows"]})

    own = TableCheck("odd", "n is odd", lambda ctx: ["2 is even"])
    table = Table(
        "standardised/t",
        "pool",
        (),
        "1",
        "",
        compute=compute,
        shown=Shown(warning_column="warning", checks=(own,)),
    )
    result = run_table(ctx, table, None, tables={})
    assert [check.name for check in checks_of(table)] == [one.check.name for one in result.checks]
    assert [(one.check.name, one.check.is_blocking, dict(one.violations)) for one in result.checks[2:]] == [
        ("no_warnings", False, {"warning 1": "few rows"}),
        ("odd", False, {"pool": "2 is even"}),
    ]
    assert result.checks[2].evidence is not None
    assert result.checks[2].evidence.columns == ["n"]
    assert result.problems == []
    assert ctx.store.blocked("standardised/t") == {}


def test_a_table_with_all_it_rests_on_stops_at_the_first_problem(
    ctx: PoolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def declared(name: str, *inputs: str, frame: pl.DataFrame) -> Table:
        def compute(ctx: PoolContext) -> pl.DataFrame:
            computed.append(name)
            return frame

        return Table(name, "pool", inputs, "1", "", compute=compute)

    tables = [
        declared("raw/a", frame=values([1.0])),
        declared("signals/other", "raw/a", frame=values([1.0])),
        declared("signals/b", "raw/a", frame=values([None])),
        declared("filtered/c", "signals/b", frame=values([1.0])),
    ]
    monkeypatch.setattr(run_table_module, "tables_of", lambda ctx: {table.name: table for table in tables})
    with pytest.raises(ValueError, match=r"^signals/b: only 0.0% of the rows"):
        run_with_upstream(ctx, "filtered/c")
    assert computed == ["raw/a", "signals/b"]


def test_columns_that_no_fit_reads_leave_frozen_tables_as_they_are(tmp_path: Path) -> None:
    def digest(*versions: str, table: str = DOWNLOADS) -> str:
        return upstream_code_digest({table: [json.dumps([one, "settings", []], sort_keys=True) for one in versions]})

    assert tables_of(finished_photos(tmp_path / "home"))[DOWNLOADS].version == "2"
    assert digest("2") == digest("1")
    assert digest("1", "2") == digest("1"), "of a pool that is brought up to date shard by shard"
    assert digest("3") != digest("1")
    assert digest("2", table=SAMPLES) != digest("1", table=SAMPLES)
