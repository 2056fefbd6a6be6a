"""The ledger of a policy: its verdict tables, one terminal verdict per row, a replay that gives the npy bit for bit."""

import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.audit.ledger import (
    LedgerError,
    exact_rank,
    ledger_facts,
    ledger_policies,
    policy_in,
    recorded_ledger,
    replayed,
)
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.identity import pack_uids, packed_uids
from curation_assets.selection.judging import VERDICT_SCHEMA, fit_cut, judge_pool
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import STATES, Pool
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.shard_store import CorruptTableError, MissingTableError, ShardStore
from tests.support.id_lists import npy_bytes
from tests.support.ledgers import replay
from tests.support.lineage_pools import bring_up_to_date, finished_photos, webdataset_pool
from tests.support.random_pools import policies


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"))


def rows_of(ctx: PoolContext, policy: str) -> pl.DataFrame:
    return pl.concat(recorded_ledger(ctx.store, policy).parts())


def test_replaying_every_ledger_gives_the_npy_bit_for_bit(ctx: PoolContext) -> None:
    assert ledger_policies(ctx.store) == ["clip", "icc", "icc_after_clip", "random", "sieve", "sieve_clip"]
    for name in ledger_policies(ctx.store):
        ledger = recorded_ledger(ctx.store, name)
        written = (ctx.store.folder_path("filtered/subsets") / f"{name}.npy").read_bytes()
        assert npy_bytes(replay(ledger)) == npy_bytes(ledger.subset()) == written
        again = pl.concat(replayed(ledger))
        assert again.equals(pl.concat(ledger.parts()).select(*VERDICT_SCHEMA).cast(again.schema))


def test_every_input_row_is_there_failed_ones_included(ctx: PoolContext) -> None:
    samples = ctx.store.scan("raw/samples").collect()
    for name in ledger_policies(ctx.store):
        frame = rows_of(ctx, name)
        assert frame.columns[: len(VERDICT_SCHEMA)] == list(VERDICT_SCHEMA)
        place = ["sample_id", "shard", "source_row"]
        assert frame.select(place).cast(pl.String).equals(samples.select(place).cast(pl.String)), "in their order"
        assert set(frame["verdict"].cast(pl.String)) == set(STATES)
        assert (frame["reason"].is_null() == (frame["verdict"] == "kept")).all()
        early = frame.filter(pl.col("decided_by").is_null())["reason"].cast(pl.String)
        assert sorted(early) == ["empty_caption", "image_undecodable"]
    assert "no_value:no_image" in rows_of(ctx, "clip")["reason"].cast(pl.String).to_list()


def test_a_row_holds_signals_and_scores(ctx: PoolContext) -> None:
    fused = ctx.store.scan("fused/sieve_clip").collect()
    row = rows_of(ctx, "sieve_clip").filter(pl.col("verdict") == "kept").to_dicts()[0]
    output = fused.filter((pl.col("shard") == row["shard"]) & (pl.col("source_row") == row["source_row"])).to_dicts()[0]
    assert row["fused_sieve_clip"] == row["value"] == output["quality"]
    assert row["fused_sieve_clip_sieve_score"] == pytest.approx(output["sieve_score"], abs=1e-6)
    assert row["margin"] == row["fused_sieve_clip"] - row["threshold"] >= 0
    signal = ctx.store.read("signals/clip_score", row["shard"]).filter(pl.col("source_row") == row["source_row"])
    assert row["signals_clip_score"] == signal["value"][0]


def test_ledgers_are_the_same_in_every_run_and_their_manifests_name_the_run(tmp_path: Path) -> None:
    ledgers: list[dict[str, str]] = []
    for run_id in ("run-7", "run-8"):
        ctx = bring_up_to_date(webdataset_pool(tmp_path / run_id), run_id=run_id)
        ledgers.append({name: recorded_ledger(ctx.store, name).sha256 for name in ledger_policies(ctx.store)})
        manifest = ctx.store.manifest("filtered/icc", ctx.shards()[0])
        assert manifest is not None
        assert manifest.run_id == run_id
    contents = [
        [manifest.content_sha256 for shard in ctx.shards() if (manifest := one.manifest("filtered/icc", shard))]
        for one in (ShardStore(tmp_path / run_id / "work" / "photos") for run_id in ("run-7", "run-8"))
    ]
    assert contents[0] == contents[1]


def copied(ctx: PoolContext, home: Path) -> ShardStore:
    shutil.copytree(ctx.settings.home, home, symlinks=True)
    return ShardStore(home / "work" / "photos")


def test_a_damaged_ledger_is_not_read(ctx: PoolContext, tmp_path: Path) -> None:
    store = copied(ctx, tmp_path / "home")
    path = store.table_path("filtered/icc", ctx.shards()[1])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptTableError):
        list(recorded_ledger(store, "icc").parts())
    with pytest.raises(MissingTableError, match="ledgers: clip, icc"):
        recorded_ledger(store, "nothing")


@pytest.mark.parametrize(
    "change",
    [
        pl.when(pl.col("verdict") == "kept").then(0.0).otherwise("signals_icc").alias("signals_icc"),
        pl.when(pl.col("verdict") == "dropped").then(pl.lit("other")).otherwise("reason").alias("reason"),
        pl.col("verdict").replace("kept", "dropped"),
    ],
    ids=["a value", "a reason", "a verdict"],
)
def test_a_changed_ledger_is_not_believed(ctx: PoolContext, tmp_path: Path, change: pl.Expr) -> None:
    store = copied(ctx, tmp_path / "home")
    ledger, shard = recorded_ledger(store, "icc"), ctx.shards()[1]
    frame = store.read("filtered/icc", shard)
    changed = frame.with_columns(pl.col("verdict", "reason").cast(pl.String)).with_columns(change)
    facts = ledger_facts(ledger.policy, ledger.profile)
    store.write("filtered/icc", changed, shard, code_version="other", facts=facts)
    with pytest.raises(LedgerError, match="another verdict or reason than recorded"):
        list(replayed(recorded_ledger(store, "icc")))


def test_ledgers_open_in_duckdb(ctx: PoolContext) -> None:
    catalog = rebuild_catalog(ctx.settings.home)
    with duckdb.connect(str(catalog), read_only=True) as connection:
        found = connection.sql("select sample_id from photos.ledger_icc where verdict = 'kept' order by 1").fetchall()
    verdicts = ctx.store.scan("filtered/icc").collect().filter(pl.col("verdict") == "kept")
    assert [one for (one,) in found] == sorted(verdicts["sample_id"])


def test_an_exact_rank_is_the_place_in_the_sorted_list(ctx: PoolContext) -> None:
    for name in ("icc", "icc_after_clip", "sieve_clip"):
        ledger = recorded_ledger(ctx.store, name)
        last = len(ledger.policy.steps) - 1
        rows = rows_of(ctx, name).filter(pl.col("decided_by") == ledger.policy.rank_by, pl.col("value").is_not_null())
        best = rows.sort("value", "sample_id", descending=[True, False])
        ranks = [exact_rank(ledger, last, *row) for row in best.select("sample_id", "value").iter_rows()]
        assert ranks == [*range(1, best.height + 1)]


@given(policies())
def test_a_manifest_states_the_policy(policy: Policy) -> None:
    assert policy_in(ledger_facts(policy, "embedded")) == replace(policy, description="")


@given(st.lists(st.integers(0, 2**128 - 1), max_size=20))
def test_ids_survive_packing(numbers: list[int]) -> None:
    ids = sorted(f"{number:032x}" for number in numbers)
    packed = pack_uids(ids)
    assert uid_texts(packed["f0"], packed["f1"]).to_list() == ids
    assert (packed_uids(packed["f0"], packed["f1"]) == packed).all()


def test_rows_that_a_signal_lacks_or_has_in_another_order(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    policy = recorded_ledger(ctx.store, "icc").policy
    cut = fit_cut(policy, Pool(ctx.store))
    whole = pl.concat(judge_pool(policy, Pool(ctx.store), cut))
    shard = ctx.store.partitions("signals/icc")[0]
    table = ctx.store.read("signals/icc", shard)
    ctx.store.write("signals/icc", table[1:].reverse(), shard, code_version="8")
    found = pl.concat(judge_pool(policy, Pool(ctx.store), cut))
    is_lost = (pl.col("shard") == shard) & (pl.col("source_row") == table["source_row"][0])
    assert found.filter(~is_lost).equals(whole.filter(~is_lost))
    assert found.filter(is_lost)["reason"].to_list() == ["no_value:no_row"]
