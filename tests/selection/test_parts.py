"""A pool that is read part by part, with nothing held, has the cuts and verdicts of one that is read at once."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.selection import rows as pool_rows
from curation_assets.selection.cut import Cut
from curation_assets.selection.judging import QUANTILES, NothingToCutError, fit_cut, judge_pool
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import Pool, Wanted, values_of
from curation_assets.stores.shard_store import MissingTableError, ShardStore
from tests.support.little_memory import little_memory
from tests.support.random_pools import Tables, policies, pools, store_duplicates, store_pool


def assert_quantiles(cut: Cut, values: np.ndarray) -> None:
    """From the worst to the best of values, higher is better, that are in the pool."""
    assert len(cut.quantiles) == (QUANTILES if cut.valued else 0)
    ordered = np.array(cut.quantiles)
    assert (ordered[1:] >= ordered[:-1]).all()
    assert set(cut.quantiles) <= set(values.tolist())


@pytest.mark.slow
@given(pool=pools(), policy=policies(), rows=st.integers(1, 9))
@settings(max_examples=60)
def test_parts_give_the_cuts_and_verdicts_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, Tables],
    policy: Policy,
    rows: int,
) -> None:
    """Ties, ±0, infinite values, repeats across shards, rows that a signal lacks. `test_judging` holds what is
    judged at once against the slow judge."""
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    store_duplicates(store, samples)
    whole = Pool(store)
    assert len(whole.groups()) == 1
    wanted = Wanted.of(policy)
    try:
        cut = fit_cut(policy, whole)
    except NothingToCutError as error:
        with little_memory(rows), pytest.raises(NothingToCutError, match=str(error)):
            fit_cut(policy, whole)
        return
    verdicts = pl.concat(judge_pool(policy, whole))
    with little_memory(rows):
        assert len(whole.groups()) == len(store.partitions("raw/samples")) or rows > 1
        in_parts = fit_cut(policy, whole)
        assert in_parts == cut
        assert pl.concat(judge_pool(policy, whole)).equals(verdicts)
    (read,) = whole.parts(wanted)
    for of_parts, of_whole in zip(in_parts.cuts, cut.cuts, strict=True):
        for one in (of_parts, of_whole):
            assert_quantiles(one, values_of(read, one.rank_by))


@pytest.mark.parametrize(("at_once", "expected"), [(8, [2, 2, 1]), (3, [1] * 5), (1, [1] * 5), (100, [5])])
def test_a_part_has_few_rows_and_a_shard_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, expected: list[int]
) -> None:
    monkeypatch.setattr(pool_rows, "ROWS_AT_ONCE", at_once)
    store = ShardStore(tmp_path)
    ids = {"sample_id": [f"{row:032x}" for row in range(4)], "source_row": range(4)}
    kept = pl.DataFrame({**ids, "status": "kept"}).with_columns(reason=pl.lit(None, pl.String))
    for number in range(5):
        store.write("raw/samples", kept, f"p-{number:06d}", code_version="1")
    groups = Pool(store).groups()
    assert [len(group) for group in groups] == expected
    assert [shard for group in groups for shard in group] == store.partitions("raw/samples")


def test_a_signal_that_a_shard_lacks_is_a_missing_value_and_one_that_all_lack_an_error(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    ids = [f"{row * 7919:032x}" for row in range(12)]
    place = {"sample_id": ids, "shard": [f"p-{row % 3:06d}" for row in range(12)], "source_row": [*range(12)]}
    samples = pl.DataFrame({**place, "status": "kept"}).with_columns(reason=pl.lit(None, pl.String))
    values = pl.DataFrame({**place, "value": [0.1 * row for row in range(12)]})
    store_pool(store, samples, {"signals.icc": values.with_columns(reason=pl.lit(None, pl.String))})
    policy = Policy("p", "signals.icc", fraction=0.5)
    store.remove("signals/icc", "p-000001")
    for rows in (3, 100):
        with little_memory(rows):
            verdicts = pl.concat(judge_pool(policy, Pool(store)))
        absent = verdicts.filter(pl.col("shard") == "p-000001")
        assert set(absent["reason"]) == {"no_value:no_row"}
        assert verdicts.filter(pl.col("verdict") == "kept").height == 6
    for shard in ("p-000000", "p-000002"):
        store.remove("signals/icc", shard)
    with pytest.raises(MissingTableError, match="signals/icc"):
        fit_cut(policy, Pool(store))
