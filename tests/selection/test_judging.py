"""The judge: one terminal verdict per row, exact counts, frozen cuts, DataComp's rule; held against the slow twin."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.audit.diff import save_policy
from curation_assets.core.errors import StoreError
from curation_assets.selection.cut import Cut, PolicyCut, cut_frame, cut_of_frame
from curation_assets.selection.judging import VERDICT_SCHEMA, fit_cut, judge_pool
from curation_assets.selection.policy import Policy, Prefilter, load_policies, load_policy
from curation_assets.selection.rows import Pool, Rows
from curation_assets.stores.shard_store import ShardStore
from tests.support.random_pools import Tables, can_be_cut, policies, pools, store_duplicates, store_pool
from tests.support.slow_judge import NothingToCutError, SlowlyJudged, slow_judge

POLICIES = load_policies()
TENTHS: list[float | None] = [i / 10 for i in range(1, 11)]


def assert_same(frame: pl.DataFrame, slow: SlowlyJudged) -> None:
    """Verdicts, reasons, values and thresholds, in the order of raw/samples; types and nulls included."""
    assert frame.schema == VERDICT_SCHEMA
    assert not any(frame[name].is_nan().any() for name in ("value", "threshold", "margin"))
    assert frame.to_dicts() == [{name: row[name] for name in VERDICT_SCHEMA} for row in slow.verdicts]


def verdicts(policy: Policy, pool: Rows, cut: PolicyCut | None = None) -> pl.DataFrame:
    """Of all rows."""
    return pl.concat(judge_pool(policy, pool, cut))


def shard_by_shard(samples: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order in which a store reads them back."""
    return pl.concat(samples.sort("shard", maintain_order=True).partition_by("shard", maintain_order=True))


@pytest.mark.slow
@given(pool=pools(), policy=policies(), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_judging_arrays_equals_judging_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, Tables], policy: Policy, seed: int
) -> None:
    samples, tables = pool
    samples = shard_by_shard(samples.sample(fraction=1.0, shuffle=True, seed=seed))  # rows in any order in their shard
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    rows = Pool(store)
    try:
        slow = slow_judge(policy, samples, tables)
    except NothingToCutError:
        with pytest.raises(ValueError, match="no sample has a value"):
            fit_cut(policy, rows)
        return
    cut = fit_cut(policy, rows)
    assert cut.cuts == slow.cuts
    assert_same(verdicts(policy, rows), slow)


@pytest.mark.slow
@given(pool=pools(), policy=policies(), early=st.integers(1, 2))
@settings(max_examples=50)
def test_a_frozen_cut_judges_shards_that_came_later(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, Tables], policy: Policy, early: int
) -> None:
    """As verdict tables are made: the cut fitted on the first shards, every shard read and judged by itself."""
    samples, tables = pool
    samples = shard_by_shard(samples)
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    store_duplicates(store, samples)
    shards = store.partitions("raw/samples")
    first = samples.filter(pl.col("shard").is_in(shards[:early]))
    try:
        cuts = slow_judge(policy, first, tables).cuts
    except NothingToCutError:
        return
    cut = fit_cut(policy, Pool(store, shards=tuple(shards[:early])))
    assert cut.cuts == cuts
    assert PolicyCut.from_dict(cut.to_dict()) == cut_of_frame(cut_frame(cut)) == cut
    slow = slow_judge(policy, samples, tables, cuts)
    assert_same(verdicts(policy, Pool(store), cut), slow)
    together = verdicts(policy, Pool(store, shards=tuple(shards[-2:])), cut)
    for shard in shards:
        frame = verdicts(policy, Pool(store, shards=(shard,)), cut)
        expected = [row for row in slow.verdicts if row["shard"] == shard]
        assert frame.to_dicts() == [{name: row[name] for name in VERDICT_SCHEMA} for row in expected]
        if shard in shards[-2:]:
            assert together.filter(pl.col("shard") == shard).equals(frame)


@pytest.mark.slow
@given(pool=pools(), policy=policies(), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_the_order_of_rows_is_irrelevant(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, Tables], policy: Policy, seed: int
) -> None:
    samples, tables = pool
    frames, cuts = [], []
    for ordered in (samples, samples.sample(fraction=1.0, shuffle=True, seed=seed)):
        store = ShardStore(tmp_path_factory.mktemp("store"))
        store_pool(store, ordered, tables)
        rows = Pool(store)
        if not can_be_cut(policy, rows):
            return
        cuts.append(fit_cut(policy, rows))
        frames.append(verdicts(policy, Pool(store), cuts[-1]).sort("shard", "source_row"))
    assert frames[0].equals(frames[1])
    assert cuts[0] == cuts[1]


# -- read by eye ------------------------------------------------------------------------------------------------------


def pool_of(
    folder: Path, values: Mapping[str, list[float | None]], status: list[str] | None = None, shards: int = 2
) -> Pool:
    """A stored pool of as many samples as values; `values` by reference."""
    n = len(next(iter(values.values())))
    status = status or ["kept"] * n
    samples = pl.DataFrame(
        {
            "sample_id": [f"{(i * 7919) % 10_007:032x}" for i in range(n)],
            "shard": [f"scenes-{i * shards // n:06d}" for i in range(n)],
            "source_row": list(range(n)),
            "status": status,
            "reason": [None if state == "kept" else f"why_{state}" for state in status],
        },
        schema_overrides={"reason": pl.String},
    )
    tables = {
        reference: samples.select("sample_id", "shard", "source_row").with_columns(
            pl.Series("value", column, dtype=pl.Float64),
            pl.Series("reason", ["no_image" if value is None else None for value in column], dtype=pl.String),
        )
        for reference, column in values.items()
    }
    store = ShardStore(folder)
    store_pool(store, samples, tables)
    return Pool(store)


def test_a_simple_cut(tmp_path: Path) -> None:
    policy, pool = Policy(name="p", rank_by="signals.icc", fraction=0.2), pool_of(tmp_path, {"signals.icc": TENTHS})
    frame, cut = verdicts(policy, pool), fit_cut(policy, pool)
    assert list(frame.columns) == list(VERDICT_SCHEMA)
    assert frame["source_row"].to_list() == list(range(10))
    assert frame["verdict"].to_list() == ["dropped"] * 8 + ["kept"] * 2
    assert frame["margin"].to_list() == pytest.approx([value - 0.9 for value in TENTHS if value])
    assert frame["reason"].to_list() == ["below_cut:signals.icc"] * 8 + [None] * 2
    assert (cut.cuts[-1].kept, cut.threshold, cut.pool_size) == (2, 0.9, 10)


def test_ties_go_by_sample_id(tmp_path: Path) -> None:
    """Ids of rows 0–3: 0, 7919, 5831, 3743."""
    rows = pool_of(tmp_path, {"signals.icc": [0.5, 0.5, 0.5, 0.5]})
    policy = Policy(name="p", rank_by="signals.icc", count=2)
    frame = verdicts(policy, rows)
    assert frame["verdict"].to_list() == ["kept", "dropped", "dropped", "kept"]
    assert fit_cut(policy, rows).cuts[0].boundary_id == f"{3743:032x}"
    assert frame["margin"].to_list() == [0.0] * 4


@pytest.mark.parametrize(("change", "is_kept"), [(-4e-8, True), (4e-8, True), (-1e-5, False)])
def test_the_row_on_which_a_cut_fell_stays_where_its_value_is_made_again(
    tmp_path: Path, change: float, is_kept: bool
) -> None:
    """Another batch or machine moves values by some 4e-8. Only the row of the boundary's id is meant."""
    policy = Policy(name="p", rank_by="signals.icc", fraction=0.2)
    cut = fit_cut(policy, pool_of(tmp_path / "before", {"signals.icc": TENTHS}))
    again = pool_of(tmp_path / "after", {"signals.icc": [*TENTHS[:8], 0.9 + change, 1.0]})
    assert verdicts(policy, again, cut)["verdict"].to_list()[8:] == ["kept" if is_kept else "dropped", "kept"]
    others = pool_of(tmp_path / "others", {"signals.icc": [0.9 - 4e-8, *TENTHS[1:]]})
    assert verdicts(policy, others, cut)["verdict"].to_list() == ["dropped"] * 8 + ["kept"] * 2


def test_a_count_keeps_so_many_or_all(tmp_path: Path) -> None:
    """Rao et al.'s amalgams are the best so many pairs of a union."""
    rows = pool_of(tmp_path, {"signals.icc": TENTHS})
    for count, kept in ((3, 3), (99, 10)):
        assert (verdicts(Policy(name="p", rank_by="signals.icc", count=count), rows)["verdict"] == "kept").sum() == kept


def test_prefilter_then_rank(tmp_path: Path) -> None:
    """Half of eight by CLIP (rows 4–7), then the best quarter of the pool (2) by ICC among those."""
    clip: list[float | None] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    icc: list[float | None] = [0.9, 0.9, 0.9, 0.9, 0.1, 0.4, None, 0.3]
    pool = pool_of(tmp_path, {"signals.clip_score": clip, "signals.icc": icc})
    frame, cuts = verdicts(POLICIES["icc_after_clip"], pool), fit_cut(POLICIES["icc_after_clip"], pool).cuts
    assert frame["verdict"].to_list() == ["dropped"] * 5 + ["kept", "failed", "kept"]
    assert frame["reason"].to_list() == [
        *["prefilter:signals.clip_score"] * 4,
        "below_cut:signals.icc",
        None,
        "no_value:no_image",
        None,
    ]
    assert frame["decided_by"].to_list() == ["signals.clip_score"] * 4 + ["signals.icc"] * 4
    assert frame["value"].to_list() == [0.1, 0.2, 0.3, 0.4, 0.1, 0.4, None, 0.3]
    assert frame["threshold"].to_list() == [0.5] * 4 + [0.3] * 4
    assert [(cut.candidates, cut.valued, cut.kept) for cut in cuts] == [(8, 8, 4), (4, 3, 2)]


def test_prefilters_by_threshold_intersect_with_predicates(tmp_path: Path) -> None:
    """DataComp: the best by CLIPScore first, then whatever passes every predicate (formulas.md §3.2)."""
    rows = pool_of(tmp_path, {"signals.clip_score": TENTHS, "signals.a": [1, 0] * 5, "signals.b": [1.0] * 8 + [0, 1]})
    policy = Policy(
        name="p",
        rank_by="signals.a",
        threshold=1,
        prefilters=(Prefilter("signals.clip_score", 0.6), Prefilter("signals.b", threshold=1)),
    )
    frame = verdicts(policy, rows)
    # best six are rows 4–9; b drops 8; a keeps the even ones
    assert frame["source_row"].filter(frame["verdict"] == "kept").to_list() == [4, 6]
    assert frame["reason"].to_list()[7:] == ["below_cut:signals.a", "prefilter:signals.b", "below_cut:signals.a"]


def test_what_raw_did_not_keep_keeps_its_reason(tmp_path: Path) -> None:
    rows = pool_of(tmp_path, {"signals.icc": [0.9, None, None, 0.8]}, ["kept", "dropped", "failed", "kept"])
    frame = verdicts(Policy(name="p", rank_by="signals.icc", fraction=0.5), rows)
    assert frame["verdict"].to_list() == ["kept", "dropped", "failed", "dropped"]
    assert frame["reason"].to_list() == [None, "why_dropped", "why_failed", "below_cut:signals.icc"]
    assert frame["decided_by"].to_list() == ["signals.icc", None, None, "signals.icc"]


def test_a_dropped_duplicate_does_not_silence_the_kept_row(tmp_path: Path) -> None:
    """Two rows of one sample in one shard, the first dropped by raw: the kept one is judged by its own value."""
    samples = pl.DataFrame(
        {
            "sample_id": ["a" * 32, "a" * 32, "b" * 32],
            "shard": ["s-000000"] * 3,
            "source_row": [0, 1, 2],
            "status": ["dropped", "kept", "kept"],
            "reason": ["duplicate", None, None],
        }
    )
    signal = samples.select("sample_id", "shard", "source_row", value=pl.Series([None, 0.9, 0.2])).with_columns(
        reason=pl.Series(["upstream_dropped:duplicate", None, None])
    )
    store = ShardStore(tmp_path)
    store_pool(store, samples, {"signals.icc": signal})
    frame = verdicts(Policy(name="p", rank_by="signals.icc", fraction=1), Pool(store))
    assert frame["verdict"].to_list() == ["dropped", "kept", "kept"]
    assert frame["value"].to_list() == [None, 0.9, 0.2]


def test_two_values_of_one_row_are_refused(tmp_path: Path) -> None:
    rows = pool_of(tmp_path, {"signals.icc": TENTHS})
    shard = rows.store.partitions("raw/samples")[0]
    table = rows.store.read("signals/icc", shard)
    rows.store.write("signals/icc", pl.concat([table, table.head(1)]), shard, code_version="2")
    with pytest.raises(StoreError, match=r"signals/icc has two rows for one row of raw/samples"):
        verdicts(POLICIES["icc"], Pool(rows.store, shards=(shard,)))


def test_a_frozen_cut_is_of_one_policy_and_version(tmp_path: Path) -> None:
    policy = Policy(name="p", rank_by="signals.icc", fraction=0.2)
    cut = fit_cut(policy, pool_of(tmp_path / "first", {"signals.icc": TENTHS}))
    later = pool_of(tmp_path / "later", {"signals.icc": [0.95, 0.85]})
    assert verdicts(policy, later, cut)["verdict"].to_list() == ["kept", "dropped"]
    with pytest.raises(ValueError, match="apply the policy anew"):
        verdicts(policy.with_fraction(0.3), later, cut)


def test_a_cut_that_nothing_passed_passes_nothing_later(tmp_path: Path) -> None:
    policy = Policy(name="p", rank_by="signals.icc", fraction=0.5)
    cut = fit_cut(policy, pool_of(tmp_path / "first", {"signals.icc": [None, None]}))
    assert (cut.cuts[-1].kept, cut.threshold) == (0, None)
    later = pool_of(tmp_path / "later", {"signals.icc": [0.95, math.inf]})
    assert verdicts(policy, later, cut)["verdict"].to_list() == ["dropped", "dropped"]


@pytest.mark.parametrize("threshold", [math.inf, -math.inf])
def test_infinite_thresholds_survive_every_file(tmp_path: Path, threshold: float) -> None:
    """YAML of the policy, JSON and table of its cut, footer of its ledger: the same policy, the same verdicts."""
    saved = save_policy(tmp_path, Policy(name="p", rank_by="signals.icc", threshold=threshold), "p")
    policy = load_policy(saved)
    assert policy.threshold == threshold
    rows = pool_of(tmp_path / "first", {"signals.icc": [0.2, None, math.inf]})
    cut = fit_cut(policy, rows)
    assert cut.threshold == threshold
    text = json.dumps(cut.to_dict(), allow_nan=False)  # what other programs can read
    assert PolicyCut.from_dict(json.loads(text)) == cut
    cut_frame(cut).write_parquet(tmp_path / "cut.parquet")
    assert cut_of_frame(pl.read_parquet(tmp_path / "cut.parquet")) == cut
    later = pool_of(tmp_path / "later", {"signals.icc": [0.95, -math.inf, None]})
    expected = ["kept", "kept", "failed"] if threshold < 0 else ["dropped", "dropped", "failed"]
    for again in (PolicyCut.from_dict(json.loads(text)), cut_of_frame(cut_frame(cut))):
        assert verdicts(policy, later, again)["verdict"].to_list() == expected
    frame = verdicts(policy, later, cut)
    assert frame["threshold"].to_list() == [threshold] * 3
    assert frame["margin"].to_list() == [None] * 3


def test_a_threshold_of_infinite_values_is_no_cut_of_nothing() -> None:
    """Where the best values are infinite, so is the threshold; it passes them in later shards too."""
    cuts = (
        Cut("signals.icc", 2, 2, 1, math.inf, "0" * 32),
        Cut("signals.icc", 2, 2, 2, -math.inf, None),
        Cut("signals.icc", 2, 0, 0, None, None),
    )
    cut = PolicyCut("p", "v", 2, "f", cuts)
    assert PolicyCut.from_dict(json.loads(json.dumps(cut.to_dict(), allow_nan=False))) == cut
    assert cut_of_frame(cut_frame(cut)) == cut


def test_nan_is_no_threshold() -> None:
    with pytest.raises(ValueError, match="nan is no threshold"):
        Policy(name="p", rank_by="signals.icc", threshold=math.nan)


def test_the_fingerprint_tells_pools_apart(tmp_path: Path) -> None:
    policy = Policy(name="p", rank_by="signals.icc", fraction=0.5)
    first, same, other = (
        fit_cut(policy, pool_of(tmp_path / str(number), {"signals.icc": values})).pool_fingerprint
        for number, values in enumerate(([0.1, 0.2], [0.1, 0.2], [0.1, 0.3]))
    )
    assert first == same != other


def test_an_empty_pool_keeps_nothing(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, {"signals.icc": [None, None]}, ["failed", "dropped"])
    frame = verdicts(POLICIES["icc"], pool)
    assert (fit_cut(POLICIES["icc"], pool).cuts[-1].kept, frame["verdict"].to_list()) == (0, ["failed", "dropped"])
    assert frame["value"].to_list() == [None, None]
