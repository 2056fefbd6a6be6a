"""Files that are written part by part, against those written at once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.identity import packed_uids
from curation_assets.stores.parquet import write_as_frame
from curation_assets.stores.subsets import lists_subset, write_sorted_subset
from tests.support.id_lists import npy_bytes, unpack_uids


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@given(ids=st.lists(st.integers(0, 6), max_size=30), size=st.sampled_from([1, 3, 100]))
def test_subset_files_are_those_of_numpy_and_polars(scratch: Path, ids: list[int], size: int) -> None:
    low = np.sort(np.array(ids, dtype=np.uint64))
    check_subset_files(scratch, packed_uids(low // np.uint64(3), low), size)


def test_subset_files_of_several_row_groups(tmp_path: Path) -> None:
    low = np.sort(np.random.default_rng(0).integers(0, 400_000, 600_000).astype(np.uint64))
    for size in (70_001, 500_000):
        check_subset_files(tmp_path, packed_uids(low, low), size)


def check_subset_files(folder: Path, packed: np.ndarray, size: int) -> None:
    """`size`: ids that are texts together."""
    npy, parquet, slow = folder / "some.npy", folder / "some.parquet", folder / "slow.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.stores.subsets.IDS_AT_ONCE", size)
        assert write_sorted_subset(npy, parquet, packed) == len(packed)
        assert lists_subset(parquet, packed)
        assert not lists_subset(parquet, packed[1:]) or not len(packed)
    assert npy.read_bytes() == npy_bytes(packed)
    counted = pl.DataFrame({"sample_id": unpack_uids(packed)}, schema={"sample_id": pl.String})
    counted = counted.group_by("sample_id", maintain_order=True).agg(pl.len().cast(pl.Int64).alias("multiplicity"))
    counted.rechunk().write_parquet(slow, compression="zstd")
    assert parquet.read_bytes() == slow.read_bytes()
    for path in (npy, parquet, slow):
        path.unlink()


@pytest.mark.parametrize("rows", [0, 1, 122_881, 184_321, 300_000])
def test_a_table_written_in_parts_has_the_bytes_of_a_frame(tmp_path: Path, rows: int) -> None:
    rng = np.random.default_rng(rows)
    frame = pl.DataFrame({"a": rng.integers(0, 1 << 60, rows), "b": [f"text {n % 97}" for n in range(rows)]})
    frame = frame.with_columns(pl.when(pl.col("a") % 3 > 0).then("b").alias("b"))
    frame.write_parquet(tmp_path / "whole.parquet", compression="zstd")
    parts = in_parts(frame, 10_007)
    write_as_frame(tmp_path / "parts.parquet", parts, frame.schema, rows)
    assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert next(parts, None) is None, "what gives them clears up at its end"


def in_parts(frame: pl.DataFrame, size: int) -> Iterator[pl.DataFrame]:
    for start in range(0, frame.height, size):
        yield frame[start : start + size]
