"""A policy against a file of ids: counts by hand, ids that the pool lacks, and why listed samples are not kept."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from curation_assets.audit.against import compare_with_file
from curation_assets.numeric.identity import pack_uids
from curation_assets.selection.policy import Policy
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import packed_ids, write_sorted_subset
from tests.support.id_lists import unpack_uids
from tests.support.little_memory import little_memory
from tests.support.random_pools import store_pool

IDS = [f"{number:032x}" for number in range(8)]
POLICY = Policy(name="half", rank_by="signals.icc", fraction=0.5)


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    """Values fall with the id; raw drops the last, and the last but one has no value: 0, 1, 2 (of 7: 3.5 → 4) and 3."""
    samples = pl.DataFrame(
        {
            "sample_id": IDS,
            "shard": ["photos-000000"] * 4 + ["photos-000001"] * 4,
            "source_row": [0, 1, 2, 3] * 2,
            "status": ["kept"] * 7 + ["dropped"],
            "reason": [None] * 7 + ["empty_caption"],
        }
    )
    values = samples.select("sample_id", "shard", "source_row").with_columns(
        pl.Series("value", [7.0, 6, 5, 4, 3, 2, None, None]), pl.Series("reason", [None] * 6 + ["no_image", "x"])
    )
    store = ShardStore(tmp_path / "pool")
    store_pool(store, samples, {"signals.icc": values})
    return store


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_counts_by_hand(store: ShardStore, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"theirs{suffix}"
    listed = [IDS[0], IDS[0], IDS[3], IDS[4], IDS[5], IDS[6], IDS[7], "f" * 32]  # one twice, one of another pool
    write_sorted_subset(path.with_suffix(".npy"), path.with_suffix(".parquet"), pack_uids(listed))
    difference = compare_with_file(store, POLICY, path)
    assert (difference.overlap.left, difference.overlap.right, difference.overlap.both) == (4, 6, 2)
    assert difference.overlap.iou == 2 / 8
    assert (difference.listed, difference.not_in_pool, difference.judged) == (7, 1, 7)
    assert difference.reasons.rows() == [
        ("dropped", "below_cut:signals.icc", 2),
        ("dropped", "empty_caption", 1),
        ("failed", "no_value:no_image", 1),
    ]
    assert difference.to_dict()["only_file"] == 4
    with little_memory(1):
        assert compare_with_file(store, POLICY, path).to_dict() == difference.to_dict()


def test_lists_are_read_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats at the ends of parts; a cell that is no id is named by its row in the file; an unsorted .npy."""
    listed = sorted([*IDS, *IDS[2:5]])
    np.save(tmp_path / "ids.npy", pack_uids(listed))
    pl.DataFrame({"uid": [*reversed(listed)]}).write_parquet(tmp_path / "ids.parquet")
    np.save(tmp_path / "unsorted.npy", np.load(tmp_path / "ids.npy")[::-1])
    pl.DataFrame({"uid": [*IDS, "no id"]}).write_parquet(tmp_path / "wrong.parquet")
    monkeypatch.setattr("curation_assets.stores.parquet.PART_ROWS", 2)
    for suffix in (".npy", ".parquet"):
        assert unpack_uids(packed_ids(tmp_path / f"ids{suffix}")) == listed
    with pytest.raises(ValueError, match="uid of row 8 must be 32 hex digits"):
        packed_ids(tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match="ids must be sorted"):
        packed_ids(tmp_path / "unsorted.npy")


def test_a_file_of_another_kind_is_refused(store: ShardStore, tmp_path: Path) -> None:
    (tmp_path / "ids.pdf").write_text("ids")
    with pytest.raises(ValueError, match=r"\.npy"):
        compare_with_file(store, POLICY, tmp_path / "ids.pdf")
    with pytest.raises(FileNotFoundError, match="no file"):
        compare_with_file(store, POLICY, tmp_path / "ids.npy")
