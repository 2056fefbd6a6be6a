"""A pool sorted on disk and judged part by part gives what one in memory gives: the same cuts, ledgers, repeats."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.audit.ledger import LedgerError, check_against_verdicts, write_ledger
from curation_assets.audit.versions import VersionBook
from curation_assets.core.disk import DiskError
from curation_assets.core.settings import home_of
from curation_assets.core.table_names import DUPLICATES, LEDGER
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.selection import ranges
from curation_assets.selection.judging import fit_cut, judge
from curation_assets.selection.part_by_part import fit_pool_cut
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.selection.ranges import SortedPool, ranges_with_repeats, whole_pool
from curation_assets.selection.rows import PoolRows
from curation_assets.stores.objects import open_home
from curation_assets.stores.shard_store import MissingTableError, ShardStore
from curation_assets.stores.temporary import host
from tests.support.bucket import BUCKET, running_bucket
from tests.support.directions import lower_is_better
from tests.support.lineage_pools import finished_photos
from tests.support.little_memory import little_memory
from tests.support.random_pools import Tables, policies, pools, store_duplicates, store_pool

RECIPES = {"fused.sieve_clip": ("raw.samples", "signals.icc", "signals.clip_score")}


def repeats_of(parts: Iterator[PoolRows]) -> list[tuple[str, str, int]]:
    return [
        (rows.sample_ids[row], rows.shard.words[rows.shard.codes[row]], int(rows.source_row[row]))
        for rows in parts
        for row in rows.repeats(first_too=True).tolist()
    ]


def assert_same(store: ShardStore, policy: Policy, rows: int) -> None:
    """Cut, ledger and repeats, with parts of so many rows, or the same error."""
    whole, book = PoolRows.read(store), VersionBook(store, "embedded")
    expected = store.root / "whole.parquet"
    repeats = repeats_of(PoolRows.with_repeats(store).parts())
    try:
        cut = fit_cut(policy, whole)
    except ValueError as error:
        with little_memory(rows), whole_pool(store) as pool, pytest.raises(type(error), match=re.escape(str(error))):
            fit_pool_cut(policy, pool)
        return
    judged = write_ledger(whole, policy, expected, book, recipes=RECIPES)
    frame = judge(policy, whole).frame()
    with little_memory(rows), whole_pool(store) as pool:
        assert isinstance(pool, SortedPool)
        assert fit_pool_cut(policy, pool) == cut
        in_parts = write_ledger(pool, policy, store.root / "parts.parquet", book, recipes=RECIPES)
        assert (in_parts.counts, in_parts.cut) == (judged.counts, cut)
        check_against_verdicts(policy, in_parts.by_shards(), lambda shard: frame.filter(pl.col("shard") == shard))
        other = frame.with_columns(
            pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("?")).otherwise("reason").alias("reason")
        )
        with pytest.raises(LedgerError, match="disagree in 1 rows"):
            check_against_verdicts(policy, in_parts.by_shards(), lambda shard: other.filter(pl.col("shard") == shard))
    assert (store.root / "parts.parquet").read_bytes() == expected.read_bytes()
    with little_memory(rows), ranges_with_repeats(store) as parts:
        assert repeats_of(parts) == repeats
    assert not list(store.root.glob("*sorted_rows*"))


@pytest.mark.slow
@given(pool=pools(), policy=policies(), rows=st.integers(1, 9), seed=st.integers(0, 99), has_duplicates=st.booleans())
@settings(max_examples=40)
def test_parts_give_the_bytes_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, Tables],
    policy: Policy,
    rows: int,
    seed: int,
    has_duplicates: bool,
) -> None:
    """Ties, ±0, NaN, repeats across shards with and without their table, rows that a signal lacks, in any order."""
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples.sample(fraction=1.0, shuffle=True, seed=seed), tables)
    if has_duplicates:
        store_duplicates(store, samples)
    assert_same(store, policy, rows)


def stored(folder: Path, ids: list[str], columns: dict[str, list[float | None]], shards: int = 3) -> ShardStore:
    """Rows that raw kept, one after the other into shards; a signal per column, whose first row has no value."""
    n = len(ids)
    samples = pl.DataFrame(
        {
            "sample_id": ids,
            "shard": [f"photos-{row % shards:06d}" for row in range(n)],
            "source_row": [row // shards for row in range(n)],
            "status": ["kept"] * n,
            "reason": [None] * n,
        },
        schema_overrides={"reason": pl.String},
    )
    tables = {}
    for reference, values in columns.items():
        reasons = [None if value is not None else "no_image" for value in values]
        tables[reference] = samples.select("sample_id", "shard", "source_row").with_columns(
            pl.Series("value", values, dtype=pl.Float64), pl.Series("reason", reasons, dtype=pl.String)
        )
    store = ShardStore(folder)
    store_pool(store, samples, tables)
    return store


@pytest.mark.slow
def test_ties_infinite_values_and_ids_of_one_prefix(tmp_path: Path) -> None:
    """Ids that differ in their last digits, one of them in twenty rows; two thirds of the values are the same."""
    ids = [f"{row % 2:016x}{row // 2:016x}" for row in range(60)] + ["0" * 31 + "7"] * 20
    values = [(0.5, 0.5, float("inf"), 0.5, -0.0, float("-inf"), None, 0.5)[row % 8] for row in range(80)]
    lower = [float(row % 7) for row in range(80)]
    store = stored(tmp_path, ids, {"signals.icc": values, "signals.sieve": lower})
    first = (Prefilter("signals.sieve", 0.6),)
    policies = [
        Policy("p", "signals.icc", count=40, prefilters=first),
        Policy("p", "signals.icc", fraction=0.5, semantics="compat", prefilters=first),
        Policy("p", "signals.icc", threshold=float("inf"), prefilters=first),
        Policy("p", "signals.sieve", fraction=0.4, prefilters=(Prefilter("signals.icc", threshold=0.5),)),
    ]
    for policy in policies:
        assert_same(store, policy, 25)
    with lower_is_better("sieve"):
        for policy in policies[:2]:
            assert_same(store, policy, 30)


def test_one_row_and_none_with_a_value(tmp_path: Path) -> None:
    one = stored(tmp_path / "one", ["a" * 32], {"signals.icc": [0.5]})
    none = stored(tmp_path / "none", [f"{row:032x}" for row in range(9)], {"signals.icc": [None] * 9})
    for store in (one, none):
        assert_same(store, Policy("p", "signals.icc", fraction=0.5), 2)
        assert_same(store, Policy("p", "signals.icc", fraction=0.5, semantics="compat"), 2)


def test_shards_that_a_signal_lacks_have_no_row(tmp_path: Path) -> None:
    store = stored(
        tmp_path, [f"{row * 7919:032x}" for row in range(12)], {"signals.icc": [0.1 * row for row in range(12)]}
    )
    store.remove("signals/icc", "photos-000001")
    assert_same(store, Policy("p", "signals.icc", fraction=0.5), 5)
    for shard in ("photos-000000", "photos-000002"):
        store.remove("signals/icc", shard)
    with little_memory(5), whole_pool(store) as pool, pytest.raises(MissingTableError, match="signals/icc"):
        fit_pool_cut(Policy("p", "signals.icc", fraction=0.5), pool)


@pytest.mark.slow
def test_a_finished_pool(tmp_path: Path) -> None:
    """Every policy of a pool: recipes with scores, prefilters; cut, ledger and duplicates as the flow made them."""
    ctx = finished_photos(tmp_path)
    tables = tables_of(ctx)
    names = [f"filtered/{policy.name}_cut" for policy in policies_of(ctx)]
    cuts = {name: ctx.store.read(name) for name in names}
    ledgers = {path.name: path.read_bytes() for path in ctx.store.folder_path(LEDGER).glob("*.parquet")}
    assert len(ledgers) == len(cuts) > 2
    with little_memory(7):
        for name in (DUPLICATES, *names, LEDGER):
            ctx.store.remove(name)
            materialise_table(ctx, tables[name], tables=tables)
    assert all(ctx.store.read(name).equals(cut) for name, cut in cuts.items())
    assert {path.name: path.read_bytes() for path in ctx.store.folder_path(LEDGER).glob("*.parquet")} == ledgers


def fit_stopped(store: ShardStore) -> None:
    """A cut whose signal is read when Ctrl+C comes."""

    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, whole_pool(store) as pool:
        patch.setattr(ranges, "gather", stopped)
        fit_pool_cut(Policy("p", "signals.icc", count=1), pool)


def test_a_full_disk_a_stop_and_what_a_killed_process_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stored(tmp_path, ["a" * 32], {"signals.icc": [0.5]})
    left = store.root / f".sorted_rows.tmp-{host()}-{2**22 + 1}-0123abcd"
    left.mkdir()
    with little_memory(1):
        with whole_pool(store):
            assert not left.exists()
        with pytest.raises(KeyboardInterrupt):
            fit_stopped(store)
        assert not list(store.root.glob("*sorted_rows*"))
        monkeypatch.setattr(ranges.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
        with pytest.raises(DiskError, match="to sort the 1 rows of the pool"), whole_pool(store):
            pass
    assert not list(store.root.glob("*sorted_rows*"))


def test_groups_that_other_machines_read_come_through_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are this process here, two nodes in tests/flow/test_ray_workers.py. What a killed run left is removed."""
    monkeypatch.setenv("CURATION_HOMES", str(tmp_path))
    policy = Policy("p", "signals.icc", fraction=0.5)

    def run_all(function: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> Iterator[object]:
        return (function(*arguments) for arguments in calls)

    with running_bucket(monkeypatch) as bucket:

        def objects() -> list[str]:
            return [key for key in bucket.keys("pools/work/photos") if "/sorted_rows/" in key]

        home = home_of(f"s3://{BUCKET}/pools")
        open_home(home)
        store = stored(home / "work" / "photos", [f"{n:032x}" for n in range(12)], {"signals.icc": [*range(12)]})
        for left in ("left", "also"):
            bucket.client.put_object(Bucket=BUCKET, Key=f"pools/work/photos/sorted_rows/{left}/a.npy", Body=b"a")
        with little_memory(5):
            store.run_all = run_all
            with whole_pool(store) as pool:
                assert {key.split("/")[5] for key in objects()} == {"a.npy", "group0", "group1", "group2"}
                assert fit_pool_cut(policy, pool) == fit_cut(policy, PoolRows.read(store))
            assert len(objects()) == 2, "another run may still write them"
            monkeypatch.setattr(ranges, "FOREIGN_STALE_SECONDS", -60.0)
            with whole_pool(store):
                pass
        assert objects() == []


@pytest.mark.parametrize(
    ("most_rows", "most_shards", "expected"), [(12, 100, [3, 3, 1]), (1000, 2, [2, 2, 2, 1]), (1000, 100, [7])]
)
def test_a_group_has_few_rows_and_few_shards(
    most_rows: int, most_shards: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a shard takes memory of its own, however few rows it has."""
    monkeypatch.setattr(ranges, "GROUP_ROWS", most_rows)
    monkeypatch.setattr(ranges, "GROUP_SHARDS", most_shards)
    store = SimpleNamespace(
        partitions=lambda _: [f"p-{number:06d}" for number in range(7)],
        manifest=lambda *_: SimpleNamespace(row_count=4),
    )
    groups, rows = ranges._groups(store)  # type: ignore[arg-type]
    assert [len(group) for group in groups] == expected
    assert rows == 28
    assert [shard for group in groups for shard in group] == store.partitions("")
