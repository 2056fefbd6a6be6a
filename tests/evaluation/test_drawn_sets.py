"""Names of trainings, and draws from sets."""

from collections.abc import Iterator
from functools import partial
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
from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.numeric.identity import pack_uids
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import Pool, Wanted, read_rows, uid_columns
from curation_assets.stores.columns import uid_texts
from tests.support.lineage_pools import finished_photos

ALL = Wanted()
CONTROLS = ("all", "longest_caption", "lexicon", "oracle")


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
        DownstreamOptions(downstream_sizes=(0.25, size))


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


def test_sets_drawn_part_by_part_are_those_drawn_at_once(tmp_path: Path) -> None:
    store = finished_photos(tmp_path).store
    for shard in store.partitions("raw/samples"):
        values = store.read("signals/icc", shard).with_columns((pl.col("value") * 7 % 1).round(1))
        store.write(LEXICON, values, shard, code_version="1")
    held_out = store.scan("raw/samples").select("shard", "source_row").collect()[::6]

    class ByShard:
        """As of a pool whose shards are large."""

        def parts(self, wanted: Wanted = ALL, only: object = None) -> Iterator[pl.DataFrame]:
            return (read_rows(store, [shard], wanted) for shard in store.partitions("raw/samples"))

    whole, by_shard = (trainable(pool, held_out, is_decontaminated=False) for pool in (Pool(store), ByShard()))
    assert len(list(by_shard.parts())) > len(list(whole.parts())) == 1

    def entries(found: pl.DataFrame) -> list[tuple[Any, ...]]:
        return sorted(found.select("shard", "source_row", "count").rows())

    ids = next(whole.parts())["sample_id"].to_list()
    packed = pack_uids([*ids[::2], *ids[::4], "0" * 32])
    clean = pl.Series(ids[::3])
    policies = [
        Policy("a", "signals.icc", fraction=0.5),
        Policy("b", "signals.clip_score", threshold=0.3),
        Policy("c", "random", fraction=0.5),
    ]
    for size in (0.25, 0.5):
        for make in (
            *(partial(control_set, name, size=size, clean=clean) for name in CONTROLS),
            *(partial(given_set, packed, size=share) for share in (None, size)),
            *(partial(policy_set, policy, size=size, seed=1) for policy in policies),
        ):
            expected = entries(make(pool=whole))
            assert expected
            assert not {row[:2] for row in expected} & set(held_out.rows())
            assert entries(make(pool=by_shard)) == expected
