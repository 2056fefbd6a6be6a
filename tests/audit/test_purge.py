"""A ledger without some samples: their ids are nowhere, and every other verdict is what it was."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation_assets.audit import purge
from curation_assets.audit.ledger import ledger_rows_sha256, read_ledger, rows_of_ledger, write_ledger
from curation_assets.audit.purge import names_samples, write_purged
from curation_assets.audit.versions import VersionBook
from curation_assets.numeric.identity import unpack_uids
from curation_assets.selection.cut import NO_ID
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import PoolRows, rows_sha256
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.shard_store import ShardStore
from tests.support.ledgers import replay
from tests.support.random_pools import policies, pools, store_pool


@pytest.mark.slow
@given(pool=pools(), policy=policies(), data=st.data(), part_rows=st.sampled_from([2, 1000]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_purged_ledger_replays_to_the_same_subset_without_them(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]],
    policy: Policy,
    data: st.DataObject,
    part_rows: int,
) -> None:
    monkeypatch.setattr(purge, "PART_ROWS", part_rows)
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    source, target = store.root / "p.parquet", store.root / "purged.parquet"
    try:
        judged = write_ledger(PoolRows.read(store), policy, source, VersionBook(store, "embedded"), recipes={})
    except ValueError as error:
        if "no sample has a value" not in str(error):
            raise
        return
    boundaries = [cut.boundary_id for cut in judged.cut.cuts if cut.boundary_id is not None]
    ids = sorted(samples["sample_id"].unique())
    removed = set(data.draw(st.lists(st.sampled_from([*ids, *boundaries]), min_size=1, max_size=len(ids))))
    write_purged(source, target, removed)
    before, after = read_ledger(source), read_ledger(target)
    assert names_samples(source, removed)
    assert not names_samples(target, removed)
    assert ledger_rows_sha256(target) == rows_sha256(rows_of_ledger(after, store))
    assert unpack_uids(replay(target, store)) == [one for one in unpack_uids(before.packed) if one not in removed]
    is_left = ~uid_texts(before.frame["uid_high"], before.frame["uid_low"]).is_in(list(removed))
    assert after.frame.drop("rank").equals(before.frame.filter(is_left).drop("rank"))


def test_a_cut_that_fell_on_a_removed_sample_names_the_one_before(tmp_path: Path) -> None:
    """Values 3 2 2 2 1 1; the best three pass: the cut is 2, up to the second id of those with 2."""
    store = ShardStore(tmp_path)
    ids = [f"{number:032x}" for number in range(1, 7)]
    samples = pl.DataFrame(
        {"sample_id": ids, "shard": "photos-000000", "source_row": range(6), "status": "kept", "reason": None},
        schema_overrides={"reason": pl.String, "source_row": pl.Int64},
    )
    values = samples.select("sample_id", "shard", "source_row").with_columns(
        pl.Series("value", [3.0, 2.0, 2.0, 2.0, 1.0, 1.0]), pl.lit(None, pl.String).alias("reason")
    )
    store_pool(store, samples, {"signals.icc": values})
    source, target = tmp_path / "p.parquet", tmp_path / "purged.parquet"
    policy = Policy("p", "signals.icc", count=3)
    write_ledger(PoolRows.read(store), policy, source, VersionBook(store, "embedded"), recipes={})
    assert read_ledger(source).cut.cuts[0].boundary_id == ids[2]

    def cut_without(*removed: int) -> tuple[float | None, str | None]:
        cut = write_purged(source, target, {ids[number] for number in removed}).cuts[0]
        return cut.threshold, cut.boundary_id

    assert cut_without(4) == (2.0, ids[2])
    assert cut_without(2) == (2.0, ids[1])
    assert cut_without(1, 2) == (2.0, NO_ID)
    assert cut_without(0, 1, 2) == (2.0, NO_ID)
    assert unpack_uids(replay(target, store)) == []
