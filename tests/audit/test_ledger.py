"""The verdict ledger: one terminal verdict per row, a replay that gives the npy bit for bit, versions behind it."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.audit.ledger import (
    LEDGER_SCHEMA,
    PART_ROWS,
    LedgerError,
    check_against_verdicts,
    ledger_path,
    ledger_policies,
    read_ledger,
    recorded_subset,
    write_ledger,
)
from curation_assets.audit.versions import VersionBook
from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import LEDGER
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.identity import pack_uids, packed_uids
from curation_assets.selection import rows as lineage_rows
from curation_assets.selection.judging import VERDICT_SCHEMA, judge
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import STATES, PoolRows, Signal, Texts, enum_series
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.shard_store import CorruptTableError, MissingTableError, ShardStore
from tests.support.ledgers import replay
from tests.support.lineage_pools import bring_up_to_date, finished_photos, webdataset_pool
from tests.support.random_pools import policies, pools, store_pool
from tests.support.slow_judge import NothingToCutError, slow_judge


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"))


def npy_bytes(packed: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, packed, allow_pickle=False)
    return buffer.getvalue()


def test_replaying_every_ledger_gives_the_npy_bit_for_bit(ctx: PoolContext) -> None:
    subsets = ctx.store.folder_path("filtered/subsets")
    policies = ledger_policies(ctx.store)
    assert policies == ["clip", "icc", "icc_after_clip", "random", "sieve", "sieve_clip"]
    for name in policies:
        path = ledger_path(ctx.store, name)
        written = (subsets / f"{name}.npy").read_bytes()
        assert npy_bytes(replay(path, ctx.store)) == written
        assert npy_bytes(read_ledger(path).packed) == npy_bytes(np.concatenate(list(recorded_subset(path)))) == written
        assert npy_bytes(read_ledger(path).packed) == written


def test_every_input_row_is_there_failed_ones_included(ctx: PoolContext) -> None:
    samples = ctx.store.scan("raw/samples").collect()
    for name in ledger_policies(ctx.store):
        frame = read_ledger(ledger_path(ctx.store, name)).frame
        assert frame.columns[: len(LEDGER_SCHEMA)] == list(LEDGER_SCHEMA)
        ids = uid_texts(frame["uid_high"], frame["uid_low"])
        assert ids.to_list() == sorted(samples["sample_id"])
        assert set(frame["verdict"].cast(pl.String)) == set(STATES)
        assert (frame["reason"].is_null() == (frame["verdict"] == "kept")).all()
        early = frame.filter(pl.col("decided_by").is_null())["reason"].cast(pl.String)
        assert sorted(early) == ["empty_caption", "image_undecodable"]
    clip = read_ledger(ledger_path(ctx.store, "clip")).frame
    assert "no_value:no_image" in clip["reason"].cast(pl.String).to_list()


def test_a_row_holds_signals_scores_and_versions(ctx: PoolContext) -> None:
    frame = read_ledger(ledger_path(ctx.store, "sieve_clip")).frame
    fused = ctx.store.scan("fused/sieve_clip").collect()
    row = frame.filter(pl.col("verdict") == "kept").to_dicts()[0]
    output = fused.filter((pl.col("shard") == row["shard"]) & (pl.col("source_row") == row["source_row"])).to_dicts()[0]
    assert row["fused_sieve_clip"] == output["quality"]
    assert row["fused_sieve_clip_sieve_score"] == pytest.approx(output["sieve_score"], abs=1e-6)
    assert row["margin"] == row["fused_sieve_clip"] - row["threshold"] >= 0
    signal = ctx.store.read("signals/clip_score", row["shard"]).filter(pl.col("source_row") == row["source_row"])
    assert row["signals_clip_score"] == signal["value"][0]
    folder = ctx.store.folder_path(LEDGER) / "versions"
    versions = pl.read_parquet(folder / "versions.parquet").filter(pl.col("version_id") == row["version_id"])
    made = {one["table"]: one for one in versions.to_dicts()}
    assert {"raw/samples", "signals/clip_score", "signals/sieve", "fused/sieve_clip"} <= set(made)
    assert made["signals/sieve"]["code_version"] == "7"
    assert made["signals/sieve"]["models"][0]["weights_sha256"] == "ab" * 32
    assert made["signals/sieve"]["profile"] == "embedded"
    shards = pl.read_parquet(folder / "shards.parquet")
    mine = shards.filter((pl.col("table") == "signals/sieve") & (pl.col("shard") == row["shard"])).to_dicts()[0]
    manifest = ctx.store.manifest("signals/sieve", row["shard"])
    assert manifest is not None
    assert (mine["content_sha256"], mine["run_id"]) == (manifest.content_sha256, "run-of-signals")
    assert row["policy_version"] == read_ledger(ledger_path(ctx.store, "sieve_clip")).policy.version


def test_a_ledger_is_the_same_bytes_in_every_run_and_its_folder_names_the_run(tmp_path: Path) -> None:
    ledgers: list[dict[str, bytes]] = []
    for run_id in ("run-7", "run-8"):
        home = tmp_path / run_id
        ctx = bring_up_to_date(webdataset_pool(home), run_id=run_id)
        ledgers.append({name: ledger_path(ctx.store, name).read_bytes() for name in ledger_policies(ctx.store)})
        manifest = ctx.store.manifest(LEDGER)
        assert manifest is not None
        assert manifest.run_id == run_id
    assert ledgers[0] == ledgers[1]


def test_a_damaged_ledger_is_not_read(ctx: PoolContext, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(ctx.settings.home, home, symlinks=True)
    store = ShardStore(home / "work" / "photos")
    path = ledger_path(store, "icc")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptTableError, match=r"expected sha256 .* of .*icc\.parquet, got"):
        ledger_path(store, "icc")


def test_a_changed_ledger_is_not_believed(ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ledger_path(ctx.store, "icc")
    footer = pl.read_parquet_metadata(path)["curation_ledger"]
    frame = read_ledger(path).frame
    kept = frame["verdict"].cast(pl.String) == "kept"
    changed = frame.with_columns(pl.when(kept).then(0.0).otherwise("signals_icc").alias("signals_icc"))
    changed.write_parquet(tmp_path / "icc.parquet", metadata={"curation_ledger": footer})
    with pytest.raises(LedgerError, match="another verdict"):
        replay(tmp_path / "icc.parquet", ctx.store)
    for part_rows in (PART_ROWS, 1):  # of every part a rank is wrong, in one file or in several
        monkeypatch.setattr("curation_assets.audit.ledger.PART_ROWS", part_rows)
        monkeypatch.setattr("curation_assets.audit.ledger.RUN_BYTES", part_rows)
        for rank in (pl.col("rank") % 3 + 1, pl.col("rank").fill_null(1), pl.lit(None, pl.UInt32)):
            frame.with_columns(rank.alias("rank")).write_parquet(
                tmp_path / "icc.parquet", metadata={"curation_ledger": footer}
            )
            with pytest.raises(LedgerError, match="another verdict, reason or rank"):
                replay(tmp_path / "icc.parquet", ctx.store)
    frame.write_parquet(tmp_path / "other.parquet")
    with pytest.raises(LedgerError, match="no ledger"):
        read_ledger(tmp_path / "other.parquet")
    with pytest.raises(MissingTableError, match="ledgers: clip, icc"):
        ledger_path(ctx.store, "nothing")


def test_a_verdict_table_that_says_otherwise_is_found(ctx: PoolContext) -> None:
    rows = PoolRows.read(ctx.store)
    policy = read_ledger(ledger_path(ctx.store, "icc")).policy
    verdicts = ctx.store.scan("filtered/icc").collect()
    check_against_verdicts(policy, [judge(policy, rows)], lambda shard: verdicts.filter(pl.col("shard") == shard))
    is_first = pl.int_range(pl.len()) == 5
    other = verdicts.with_columns(pl.when(is_first).then(pl.lit("other")).otherwise("reason").alias("reason"))
    with pytest.raises(LedgerError, match="disagree in 1 rows"):
        check_against_verdicts(policy, [judge(policy, rows)], lambda shard: other.filter(pl.col("shard") == shard))
    with pytest.raises(LedgerError, match="disagree in 1 rows"):
        check_against_verdicts(
            policy, [judge(policy, rows)], lambda shard: verdicts[1:].filter(pl.col("shard") == shard)
        )


def test_ledgers_open_in_duckdb_with_readable_ids(ctx: PoolContext) -> None:
    catalog = rebuild_catalog(ctx.settings.home)
    with duckdb.connect(str(catalog), read_only=True) as connection:
        found = connection.sql("select sample_id from photos.ledger_icc where verdict = 'kept' order by 1").fetchall()
    verdicts = ctx.store.scan("filtered/icc").collect().filter(pl.col("verdict") == "kept")
    assert [one for (one,) in found] == sorted(verdicts["sample_id"])


def test_a_row_costs_at_most_64_bytes(tmp_path: Path) -> None:
    """Two signals and a recipe over them, 200,000 rows in 20 shards: values that do not compress."""
    rows = random_rows(200_000, shards=20, seed=1)
    rng = np.random.default_rng(2)
    none = Texts(np.full(len(rows), -1, dtype=np.int32), [])
    clip, sieve = (rng.normal(size=len(rows)).astype(np.float32).astype(np.float64) for _ in range(2))
    rows.provide("signals.clip_score", Signal(clip, none))
    rows.provide("signals.sieve", Signal(sieve, none))
    scores = {"sieve_score": sieve / 9 + 0.5, "clip_score": clip / 9 + 0.5}
    rows.provide("fused.sieve_clip", Signal((sieve + clip) / 18 + 0.5, none, scores))
    path = tmp_path / "sieve_clip.parquet"
    policy = Policy("sieve_clip", "fused.sieve_clip", fraction=0.25)
    write_ledger(
        rows,
        policy,
        path,
        VersionBook(rows.store, "embedded"),
        recipes={"fused.sieve_clip": ("raw.samples", "signals.clip_score", "signals.sieve")},
    )
    assert path.stat().st_size / len(rows) <= 64
    assert len(replay(path, rows.store)) == 50_000


def random_rows(n: int, *, shards: int, seed: int) -> PoolRows:
    rng = np.random.default_rng(seed)
    high, low = (rng.integers(0, 2**64, n, dtype=np.uint64) for _ in range(2))
    order = np.lexsort((low, high))
    place = rng.permutation(n)
    codes = (place % shards).astype(np.int32)
    names = [f"photos-{number:06d}" for number in range(shards)]
    none = Texts(np.full(n, -1, dtype=np.int32), [])
    return PoolRows(
        ShardStore(Path("nowhere")), high[order], low[order], Texts(codes, names), place, np.zeros(n, np.int8), none,
        np.arange(n),
    )  # fmt: skip


# -- property: a ledger holds the verdicts of the slow judge, and replays ----------------------------------------------


@pytest.mark.slow
@given(pool=pools(), policy=policies())
@settings(max_examples=60)
def test_a_ledger_holds_what_judging_row_by_row_gives_and_replays(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]], policy: Policy
) -> None:
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    rows = PoolRows.read(store)
    try:
        slow = slow_judge(policy, samples, tables)
    except NothingToCutError:
        with pytest.raises(ValueError, match="no sample has a value"):
            judge(policy, rows)
        return
    verdicts = pl.DataFrame(slow.verdicts, schema={**VERDICT_SCHEMA, "rank": pl.UInt32})
    path = store.root / "p.parquet"
    judged = write_ledger(rows, policy, path, VersionBook(store, "embedded"), recipes={})
    check_against_verdicts(policy, judged.by_shards(), lambda shard: verdicts.filter(pl.col("shard") == shard))
    frame = read_ledger(path).frame
    # Exactly one terminal verdict per input row, with a reason exactly where it is not kept.
    assert frame.select("shard", "source_row").n_unique() == frame.height == samples.height
    assert frame["verdict"].null_count() == 0
    assert (frame["reason"].is_null() == (frame["verdict"].cast(pl.String) == "kept")).all()
    expected = verdicts.sort("sample_id", "shard", "source_row")
    for name in ("rank", "threshold", "margin", "decided_by", "verdict", "reason"):
        assert frame[name].cast(expected[name].dtype).to_list() == expected[name].to_list(), name
    assert npy_bytes(replay(path, store)) == npy_bytes(pack_uids(slow.kept))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.audit.ledger.PART_ROWS", 3)
        patch.setattr("curation_assets.audit.ledger.RUN_BYTES", 100)
        assert npy_bytes(replay(path, store)) == npy_bytes(pack_uids(slow.kept)), "part by part, ranked on disk"


def test_a_signal_is_read_again_when_its_table_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = finished_photos(tmp_path)
    before = PoolRows.read(ctx.store)
    icc, clip = before.signal("signals.icc"), before.signal("signals.clip_score")
    again = PoolRows.read(ctx.store)
    assert again.signal("signals.icc") is icc
    shard = ctx.store.partitions("signals/icc")[1]
    table = ctx.store.read("signals/icc", shard).with_columns(value=pl.col("value") + 1)
    ctx.store.write("signals/icc", table, shard, code_version="8")
    after = PoolRows.read(ctx.store)
    moved = after.signal("signals.icc").values - icc.values
    here = after.shard.codes == after.shard.words.index(shard)
    valued = ~np.isnan(icc.values)
    assert np.allclose(moved[here & valued], 1)
    assert (moved[~here & valued] == 0).all()
    assert after.signal("signals.clip_score") is clip
    monkeypatch.setattr(lineage_rows, "RECENT_BYTES", 1)
    assert PoolRows.read(ctx.store).signal("signals.sieve") is not None  # puts out what was read before
    assert PoolRows.read(ctx.store).signal("signals.clip_score") is not clip


def test_rows_that_a_signal_lacks_or_has_in_another_order(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    rows = PoolRows.read(ctx.store)
    whole = rows.signal("signals.icc")
    shard = ctx.store.partitions("signals/icc")[0]
    table = ctx.store.read("signals/icc", shard)
    ctx.store.write("signals/icc", table[1:].reverse(), shard, code_version="8")
    found = PoolRows.read(ctx.store).signal("signals.icc")
    lost = (rows.shard.codes == 0) & (rows.source_row == table["source_row"][0])
    assert lost.sum() == 1
    assert np.array_equal(found.values[~lost], whole.values[~lost], equal_nan=True)
    assert np.isnan(found.values[lost]).all()
    output, before = found.reasons.series("reason").cast(pl.String), whole.reasons.series("reason").cast(pl.String)
    assert output.filter(pl.Series(lost)).to_list() == ["no_row"]
    assert output.filter(pl.Series(~lost)).to_list() == before.filter(pl.Series(~lost)).to_list()
    ctx.store.write("signals/icc", pl.concat([table, table[:1]]), shard, code_version="9")
    with pytest.raises(StoreError, match="two rows for one row of raw/samples"):
        PoolRows.read(ctx.store).signal("signals.icc")


def test_values_that_were_read_without_reasons_do_not_stand_in_for_them(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    shard = ctx.store.partitions("signals/icc")[0]
    table = ctx.store.read("signals/icc", shard)
    ctx.store.write("signals/icc", table[1:].reverse(), shard, code_version="8")
    rows = PoolRows.read(ctx.store)
    values = rows.values("signals.icc")
    assert rows.values("signals.icc") is values
    signal = rows.signal("signals.icc")
    assert np.array_equal(signal.values, values, equal_nan=True)
    assert signal.has_reasons
    assert "no_row" in signal.reasons.words
    assert np.isnan(values[signal.reasons.codes >= 0]).all()
    assert PoolRows.read(ctx.store).values("signals.icc") is signal.values  # what was read whole serves both
    assert np.array_equal(rows.values("random", 3), rows.signal("random", 3).values, equal_nan=True)


@given(st.lists(st.integers(0, 2**128 - 1), max_size=20))
def test_ids_survive_packing(numbers: list[int]) -> None:
    ids = sorted(f"{number:032x}" for number in numbers)
    packed = pack_uids(ids)
    assert uid_texts(packed["f0"], packed["f1"]).to_list() == ids
    assert (packed_uids(packed["f0"], packed["f1"]) == packed).all()


def test_enum_series_keeps_nulls_and_drops_unused_words() -> None:
    series = enum_series("x", np.array([2, -1, 0, 2]), ["a", "b", "c"])
    assert series.to_list() == ["c", None, "a", "c"]
    assert series.dtype == pl.Enum(["a", "c"])
    assert enum_series("x", np.array([-1]), ["a"]).to_list() == [None]


def test_footer_is_plain_json(ctx: PoolContext) -> None:
    footer = json.loads(pl.read_parquet_metadata(ledger_path(ctx.store, "icc_after_clip"))["curation_ledger"])
    assert footer["policy"]["prefilters"] == [{"rank_by": "signals.clip_score", "fraction": 0.5, "threshold": None}]
    assert len(footer["cut"]["cuts"]) == 2
    assert replace(read_ledger(ledger_path(ctx.store, "icc_after_clip")).policy, description="").version
