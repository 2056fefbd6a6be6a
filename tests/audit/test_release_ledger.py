"""A ledger without some samples: their ids are nowhere, every other verdict is what it was, other files are shared."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation_assets.audit.ledger import Ledger, read_part, replayed, signal_column, subset_of
from curation_assets.audit.release_ledger import names_samples, rows_of_samples, write_release_ledger
from curation_assets.selection.cut import NO_ID
from curation_assets.selection.judging import fit_cut, judge, multiplicity
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import Pool, Wanted, read_rows
from curation_assets.stores.shard_store import ShardStore
from tests.support.id_lists import unpack_uids
from tests.support.random_pools import can_be_cut, policies, pools, store_duplicates, store_pool


def judged(store: ShardStore, policy: Policy) -> Ledger:
    """The policy's verdict tables, as the flow stores them."""
    cut, wanted = fit_cut(policy, Pool(store)), Wanted.of(policy)
    shards = store.partitions("raw/samples")
    for shard in shards:
        rows = read_rows(store, [shard], wanted)
        verdicts = judge(policy, remaining(policy, rows), cut)
        signals = [rows[one].alias(signal_column(one)) for one in wanted.references]
        store.write(f"filtered/{policy.name}", verdicts.with_columns(signals), shard, code_version="1")
    return ledger_in(
        store.checked_paths(f"filtered/{policy.name}", shards), Ledger(policy, cut, "x", (), (), read_part)
    )


def ledger_in(paths: Sequence[Path], like: Ledger) -> Ledger:
    return dataclasses.replace(like, paths=tuple(paths), columns=tuple(pl.read_parquet_schema(paths[0])))


def purged(ledger: Ledger, folder: Path, removed: set[str]) -> Ledger:
    cut = write_release_ledger(ledger, folder, removed)
    return ledger_in(sorted(folder.iterdir()), dataclasses.replace(ledger, cut=cut))


def replayed_ids(ledger: Ledger) -> list[str]:
    parts = replayed(ledger)
    kept = (part.with_columns(multiplicity=pl.Series(multiplicity(ledger.policy, part))) for part in parts)
    return unpack_uids(subset_of(kept))


@pytest.mark.slow
@given(pool=pools(), policy=policies(), data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_ledger_without_samples_replays_to_the_same_subset_without_them(
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]],
    policy: Policy,
    data: st.DataObject,
) -> None:
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    store_duplicates(store, samples)
    if not can_be_cut(policy, Pool(store)):
        return
    before = judged(store, policy)
    boundaries = [cut.boundary_id for cut in before.cut.cuts if cut.boundary_id is not None]
    ids = sorted(samples["sample_id"].unique())
    removed = set(data.draw(st.lists(st.sampled_from([*ids, *boundaries]), min_size=1, max_size=len(ids))))
    after = purged(before, store.root / "purged", removed)
    assert names_samples(before, removed)
    assert not names_samples(after, removed)
    assert replayed_ids(after) == [one for one in unpack_uids(before.subset()) if one not in removed]
    rows = pl.concat(before.parts())
    is_left = ~pl.col("sample_id").is_in(list(removed))
    assert pl.concat(after.parts()).equals(rows.filter(is_left))
    assert rows_of_samples(before, removed).height == rows.height - rows.filter(is_left).height
    for source, target in zip(before.paths, after.paths, strict=True):
        has_any = pl.read_parquet(source)["sample_id"].is_in(list(removed)).any()
        assert source.samefile(target) == (not has_any)


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
    ledger = judged(store, Policy("p", "signals.icc", count=3))
    assert ledger.cut.cuts[0].boundary_id == ids[2]

    def without(*removed: int) -> Ledger:
        return purged(ledger, tmp_path / "-".join(map(str, removed)), {ids[number] for number in removed})

    boundaries = [(4,), (2,), (1, 2), (0, 1, 2)]
    cuts = [without(*removed).cut.cuts[0] for removed in boundaries]
    assert [(cut.threshold, cut.boundary_id) for cut in cuts] == [
        (2.0, ids[2]), (2.0, ids[1]), (2.0, NO_ID), (2.0, NO_ID)
    ]  # fmt: skip
    assert replayed_ids(without(0, 1, 2, 3)) == []


def test_a_table_that_is_written_anew_leaves_its_other_name_as_it_was(tmp_path: Path) -> None:
    """As a takedown rewrites the pool's table while a release shares it."""
    store = ShardStore(tmp_path / "pool")
    frame = pl.DataFrame({"sample_id": ["00" * 16, "11" * 16], "verdict": "kept"})
    store.write("filtered/p", frame, "photos-000000", code_version="1")
    source = store.table_path("filtered/p", "photos-000000")
    ledger = Ledger(Policy("p", "random", count=1), None, "x", (source,), ("sample_id", "verdict"), read_part)  # type: ignore[arg-type]
    ledger = dataclasses.replace(ledger, cut=fit_cut(ledger.policy, _nothing(store)))
    write_release_ledger(ledger, tmp_path / "release")
    shared = tmp_path / "release" / "photos-000000.parquet"
    before = shared.read_bytes()
    assert shared.samefile(source)
    assert shared.stat().st_mode & 0o222 == 0
    store.rewrite("filtered/p", frame.head(1), "photos-000000")
    assert store.read("filtered/p", "photos-000000").height == 1
    assert not shared.samefile(source)
    assert shared.read_bytes() == before


def _nothing(store: ShardStore) -> Pool:
    rows = pl.DataFrame(
        schema={"sample_id": pl.String, "source_row": pl.Int64, "status": pl.String, "reason": pl.String}
    )
    store.write("raw/samples", rows.with_columns(shard=pl.lit("photos-000000")), "photos-000000", code_version="1")
    return Pool(store)
