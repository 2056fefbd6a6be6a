"""What must not matter to a verdict: how a delivery is cut into shards and named, who computes, what raw drops.

Each relation makes the pool again in another home, by the flow and its own models, and compares sample by sample. The
verdict, its reason and the cut that decided are always the same; value, threshold and margin are to the last bit where
every shard has the same rows. Where shards have others, other rows go through a model together, and matrices of another
height round otherwise: `ROUNDING`. A row more that raw keeps changes what a share of the pool is, and nothing where a
policy cuts by a threshold.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.parallel import stop_workers
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.shard_store import ShardStore
from curation_assets.world.pool import plant_pool, render
from tests.support.lineage_pools import write_tar
from tests.support.tars import encoded

pytestmark = pytest.mark.slow

BY_SHARE, BY_THRESHOLD = ("clip", "icc", "icc_after_clip", "clip_deduplicated"), "by_value"
POLICIES = (*BY_SHARE, BY_THRESHOLD)
VERDICT = ("sample_id", "verdict", "reason", "decided_by", "value", "threshold", "margin")
ROUNDING = 1e-5  # of float32: measured, at most 1e-6
THRESHOLD = 0.3  # of CLIP's cosine; about half of the scenes are above it
Row = tuple[str, str, str, bytes]  # key, url, caption, image
Tars = Mapping[str, Sequence[Row]]


def _jpeg(number: int) -> bytes:
    return encoded(render(SCENES[number]), "JPEG", quality=92)


SCENES = plant_pool(37, 41)
ROWS = [(f"{at:05d}", f"http://host.example/{at}.jpg", SCENES[at].caption, _jpeg(at)) for at in range(len(SCENES))]
LATE = ROWS.pop()
#: Raw drops a blank caption and fails a broken image; the last row of the last tar repeats a sample of the first.
BLANK: Row = ("90000", "http://host.example/blank.jpg", " ", ROWS[3][3])
BROKEN: Row = ("90001", "http://host.example/broken.jpg", "a red ball on a table", b"no jpeg")
REPEAT: Row = ("90002", *ROWS[1][1:])
TARS: Tars = {"000000": ROWS[:12], "000001": ROWS[12:24], "000002": [*ROWS[24:], REPEAT]}


def made(home: Path, tars: Tars, *, pool: str = "photos") -> ShardStore:
    """The stored tables of a pool of tars, up to the verdicts of every policy."""
    for name, rows in tars.items():
        write_tar(home / "tars" / f"{name}.tar", list(rows))
    return _run(home, home / "tars", pool)


def _run(home: Path, source: Path, pool: str = "photos", **declared: int) -> ShardStore:
    own = home / "pools" / "policies"
    own.mkdir(parents=True)
    (own / f"{BY_THRESHOLD}.yaml").write_text(
        f"name: {BY_THRESHOLD}\nrank_by: signals.clip_score\nthreshold: {THRESHOLD}\n"
    )
    settings = load_settings(home, "embedded")
    options = {"fraction": 0.25, "distil": False, "downstream": False, "duplicates": True, "policies": list(POLICIES)}
    add_pool(settings, pool, source, options=options, **declared)
    ctx = PoolContext.open(settings, pool)
    run_with_upstream(ctx, *(f"filtered/{name}" for name in POLICIES), "filtered/subsets")
    return ctx.store


def verdicts(store: ShardStore, policy: str) -> pl.DataFrame:
    """One row per row of raw/samples, by sample; which of two rows of one sample is the repeat does not matter."""
    return store.scan(f"filtered/{policy}").select(VERDICT).collect().sort("sample_id", "verdict", "reason")


def assert_same(
    first: ShardStore,
    second: ShardStore,
    policies: Sequence[str] = POLICIES,
    *,
    more: int = 0,
    rounding: float = 0.0,
) -> None:
    """The same verdicts of every sample of the first; the second has so many rows `more`."""
    for policy in policies:
        expected, found = verdicts(first, policy), verdicts(second, policy)
        assert found.height == expected.height + more, policy
        if more:
            added = found.join(expected, on="sample_id", how="anti")
            assert added.height == more, policy
            found = found.join(added, on="sample_id", how="anti").sort("sample_id", "verdict", "reason")
        assert_frame_equal(found, expected, check_exact=not rounding, rel_tol=rounding, abs_tol=rounding)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> ShardStore:
    store = made(tmp_path_factory.mktemp("first"), TARS)
    for policy in POLICIES:  # else what follows would compare nothing
        counts = dict(verdicts(store, policy)["verdict"].value_counts().rows())
        assert counts["kept"] > 3, policy
        assert counts["dropped"] > 3, policy
    return store


ALL = [row for rows in TARS.values() for row in rows]
RELATIONS: dict[str, Tars] = {
    "the order of shards": {"000000": TARS["000002"], "000001": TARS["000001"], "000002": TARS["000000"]},
    "the order of rows": {name: rows[::-1] for name, rows in TARS.items()},
    "a shard split in two": {**TARS, "000001": ROWS[12:17], "000003": ROWS[17:24]},
    "shards put together": {"000000": ALL[:-1], "000001": ALL[-1:]},
    "names of files and keys": {
        f"delivery-{name}-b": [(f"img_{key[::-1]}", *rest) for key, *rest in rows] for name, rows in TARS.items()
    },
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_verdict_is_the_same_whatever(first: ShardStore, tmp_path: Path, relation: str) -> None:
    tars = RELATIONS[relation]
    keeps_shards = {frozenset(rows) for rows in _named(tars)} == {frozenset(rows) for rows in _named(TARS)}
    assert_same(first, made(tmp_path, tars), rounding=0.0 if keeps_shards else ROUNDING)


def _named(tars: Tars) -> list[list[Row]]:
    """Rows of each tar without their keys."""
    return [[("", *rest) for _, *rest in rows] for rows in tars.values()]


def test_the_name_of_a_pool_changes_no_verdict(first: ShardStore, tmp_path: Path) -> None:
    assert_same(first, made(tmp_path, TARS, pool="another"))


def test_rows_that_raw_does_not_keep_change_no_other_verdict(first: ShardStore, tmp_path: Path) -> None:
    """Shares are of what raw keeps, ranges and duplicates too: a blank caption and a broken image leave them alone."""
    more = {**TARS, "000001": [BLANK, *ROWS[12:24]], "000003": [BROKEN]}
    assert_same(first, made(tmp_path, more), more=2, rounding=ROUNDING)


def test_a_kept_row_changes_no_other_verdict_by_threshold(first: ShardStore, tmp_path: Path) -> None:
    second = made(tmp_path, {**TARS, "000003": [LATE]})
    assert_same(first, second, [BY_THRESHOLD], more=1)
    assert [_kept(store, "clip") for store in (first, second)] == [9, 9]  # 36 and 37 of which a quarter is kept


def _kept(store: ShardStore, policy: str) -> int:
    return verdicts(store, policy).filter(pl.col("verdict") == "kept").height


def test_rows_of_a_table_may_be_cut_into_any_shards(tmp_path: Path) -> None:
    stores = []
    for size in (12, 7):
        home = tmp_path / str(size)
        home.mkdir()
        table = {
            "url": [row[1] for row in ROWS],
            "caption": [row[2] for row in ROWS],
            "image": [row[3] for row in ROWS],
        }
        pl.DataFrame(table).write_parquet(home / "rows.parquet")
        stores.append(_run(home, home / "rows.parquet", shard_size=size))
    assert [len(store.partitions("filtered/clip")) for store in stores] == [3, 6]
    assert_same(*stores, rounding=ROUNDING)


def test_three_workers_give_the_verdicts_of_one(
    first: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURATION_WORKERS", "3")
    try:
        assert_same(first, made(tmp_path, TARS))
    finally:
        stop_workers()
