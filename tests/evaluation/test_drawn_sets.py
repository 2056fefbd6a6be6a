"""Names of trainings, and draws from sets."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.evaluation.drawn_sets import (
    LEXICON,
    TrainingKey,
    control_set,
    drawn,
    given_set,
    policy_set,
    trainable,
    training_keys,
)
from curation_assets.numeric.identity import pack_uids
from curation_assets.selection.policy import Policy
from curation_assets.selection.ranges import SortedPool, whole_pool
from curation_assets.selection.rows import PoolRows, uid_columns
from curation_assets.stores.columns import uid_texts
from tests.support.lineage_pools import finished_photos
from tests.support.little_memory import little_memory


def test_keys_are_read_as_they_are_written() -> None:
    keys = training_keys(["icc", "random_at", "a_own"], (0.25, 1), (0, 12))
    assert [str(key) for key in keys[:4]] == [
        "icc_at0250-000000", "icc_at0250-000012", "icc_at1000-000000", "icc_at1000-000012",
    ]  # fmt: skip
    assert [TrainingKey.parse(str(key)) for key in keys] == list(keys)
    assert [str(key) for key in training_keys(["icc"], (), (3,))] == ["icc_own-000003"]
    with pytest.raises(ValueError, match="such as icc_at0250-000002, got 'icc-000001'"):
        TrainingKey.parse("icc-000001")


@pytest.mark.parametrize("size", [0, 1.5, 0.12345])
def test_sizes_are_shares_in_thousandths(size: float) -> None:
    with pytest.raises(ValueError, match=f"in thousandths, got {size}"):
        training_keys(["icc"], (size,), (0,))


def test_a_draw_depends_on_the_ids_alone_and_keeps_all_of_a_small_set() -> None:
    ids = [f"{number:032x}" for number in range(100)]

    def chosen(ids: list[str], count: int, part: int = 100) -> dict[str, int]:
        rows = pl.DataFrame({"sample_id": ids}).select(uid_columns()).with_columns(count=pl.lit(2, pl.UInt32))
        found = drawn((rows[start : start + part] for start in range(0, len(ids), part)), count)
        return dict(zip(uid_texts(found["uid_high"], found["uid_low"]), found["count"], strict=True))

    first = chosen(ids, 61)
    assert sorted(first.values()) == [1, *[2] * 30], "61 entries, of which two are one sample's"
    assert first == chosen(ids[::-1], 61) == chosen(ids, 61, part=7)
    assert set(chosen(ids, 21)) < set(first)
    assert chosen(ids[:5], 30) == dict.fromkeys(ids[:5], 2)


@pytest.mark.parametrize("part_rows", [3, 1000])
def test_sets_drawn_part_by_part_are_those_drawn_at_once(tmp_path: Path, part_rows: int) -> None:
    ctx = finished_photos(tmp_path)
    store = ctx.store
    for shard in store.partitions("raw/samples"):
        values = store.read("signals/icc", shard).with_columns((pl.col("value") * 7 % 1).round(1))
        store.write(LEXICON, values, shard, code_version="1")
    held_out = store.scan("raw/samples").select("shard", "source_row").collect()[::6]
    changed = functools.partial(trainable, held_out=held_out, is_decontaminated=False)
    whole = [changed(PoolRows.read(store))]

    def by_shard() -> Iterator[PoolRows]:
        return (changed(PoolRows.read(store, [shard])) for shard in store.partitions("raw/samples"))

    def entries(found: pl.DataFrame) -> list[tuple[Any, ...]]:
        return sorted(found.select("shard", "source_row", "count").rows())

    ids = whole[0].sample_ids.to_list()
    packed = pack_uids([*ids[::2], *ids[::4], "0" * 32])
    for size in (0.25, 0.5):
        for name in ("all", "longest_caption", "lexicon"):
            assert entries(control_set(name, by_shard, size, clean=None)) == entries(
                control_set(name, lambda: whole, size, clean=None)
            )
        clean = pl.Series(ids[::3])
        drawn_clean = entries(control_set("oracle", by_shard, size, clean=clean))
        assert drawn_clean == entries(control_set("oracle", lambda: whole, size, clean=clean))
        for share in (None, size):
            assert entries(given_set(packed, by_shard, share)) == entries(given_set(packed, lambda: whole, share))
        for policy in (
            Policy("a", "signals.icc", fraction=0.5),
            Policy("b", "signals.clip_score", threshold=0.3),
            Policy("c", "random", fraction=0.5),
        ):
            expected = entries(policy_set(policy, PoolRows.read(store), changed, size, 1))
            assert expected
            assert not {row[:2] for row in expected} & set(held_out.rows())
            with little_memory(part_rows), whole_pool(store) as pool:
                assert isinstance(pool, SortedPool)
                assert entries(policy_set(policy, pool, changed, size, 1)) == expected
