"""Sorting on disk and `.npy` files written stretch by stretch, against sorting in memory and numpy.save."""

import io
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.identity import UID_DTYPE, packed_uids, unpack_uids
from curation_assets.stores.arrays import write_npy
from curation_assets.stores.external_sort import key_ranges, sorted_stretches
from curation_assets.stores.subsets import write_sorted_subset

Rows = list[tuple[int, str]]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def npy_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@given(
    parts=st.lists(
        st.lists(st.tuples(st.integers(0, 5) | st.just(2**64 - 1), st.text("aé0", max_size=2)), max_size=40)
    ),
    run_bytes=st.sampled_from([1, 100, 1000, 1 << 20]),
)
def test_rows_sorted_on_disk_are_those_sorted_in_memory(scratch: Path, parts: list[Rows], run_bytes: int) -> None:
    schema = {"number": pl.UInt64, "text": pl.String}
    frames = [pl.DataFrame(rows, schema=schema, orient="row") for rows in parts]
    stretches = list(sorted_stretches(iter(frames), ["number", "text"], scratch, run_bytes))
    slow = pl.concat([pl.DataFrame(schema=schema), *frames]).sort("number", "text")
    assert pl.concat([pl.DataFrame(schema=schema), *stretches]).equals(slow)
    ends = [(stretch.row(-1), after.row(0)) for stretch, after in itertools.pairwise(stretches)]
    assert all(last < first for last, first in ends), "rows that agree are in one stretch"
    assert not list(scratch.iterdir()), "nothing is left"


@given(
    streams=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(1, 9)),
        min_size=1,
        max_size=3,
    )
)
def test_rows_of_several_streams_come_range_by_range(streams: list[tuple[list[tuple[int, int]], int]]) -> None:
    """In parts of any size, none of a stream's rows lost, and all that agree in one range."""
    frames = [pl.DataFrame(sorted(rows), schema=["a", "b"], orient="row").cast(pl.Int64) for rows, _ in streams]
    parts = [
        [frame[start : start + size] for start in range(0, max(frame.height, 1), size)]
        for frame, (_, size) in zip(frames, streams, strict=True)
    ]
    ranges = list(key_ranges(parts, ["a", "b"]))
    for frame, found in zip(frames, zip(*ranges, strict=True), strict=True):
        assert pl.concat(found).equals(frame)
    keys = [{key for rows in some for key in rows.rows()} for some in ranges]
    assert all(max(first) < min(later) for first, later in itertools.combinations(filter(None, keys), 2))
    assert len(ranges) <= sum(map(len, parts)) + 1


def test_many_runs_give_stretches_that_are_not_much_larger(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).permutation(200_000).astype(np.uint64)
    parts = (pl.DataFrame({"number": part}) for part in np.split(numbers, 200))
    sizes = []
    for stretch in sorted_stretches(parts, ["number"], tmp_path, run_bytes=8 * 10_000):
        assert stretch["number"].to_list() == list(range(sum(sizes), sum(sizes) + stretch.height))
        sizes.append(stretch.height)
    assert sum(sizes) == 200_000
    assert max(sizes) < 15_000


@given(lengths=st.lists(st.integers(0, 30), max_size=5))
def test_a_npy_written_in_stretches_has_the_bytes_of_numpy(scratch: Path, lengths: list[int]) -> None:
    numbers = np.arange(sum(lengths), dtype=np.uint64)
    for whole in (numbers, packed_uids(numbers, numbers[::-1])):
        parts = np.split(whole, np.cumsum(lengths)[:-1]) if lengths else []
        assert write_npy(scratch / "some.npy", parts, whole.dtype) == len(whole)
        assert (scratch / "some.npy").read_bytes() == npy_bytes(whole)
        (scratch / "some.npy").unlink()
    assert whole.dtype == UID_DTYPE


@given(ids=st.lists(st.integers(0, 6), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_subset_files_written_in_stretches_have_the_bytes_of_those_written_at_once(
    scratch: Path, ids: list[int], cuts: list[int]
) -> None:
    low = np.sort(np.array(ids, dtype=np.uint64))
    packed = packed_uids(low // np.uint64(3), low)
    check_subset_files(scratch, packed, np.split(packed, sorted(min(cut, len(ids)) for cut in cuts)))


def test_subset_files_of_several_row_groups(tmp_path: Path) -> None:
    low = np.sort(np.random.default_rng(0).integers(0, 400_000, 600_000).astype(np.uint64))
    packed = packed_uids(low, low)
    for length in (70_001, 500_000):
        check_subset_files(tmp_path, packed, np.split(packed, range(length, len(packed), length)))


def check_subset_files(folder: Path, packed: np.ndarray, stretches: list[np.ndarray]) -> None:
    npy, parquet, slow = folder / "some.npy", folder / "some.parquet", folder / "slow.parquet"
    assert write_sorted_subset(npy, parquet, stretches) == len(packed)
    assert npy.read_bytes() == npy_bytes(packed)
    counted = pl.DataFrame({"sample_id": unpack_uids(packed)}, schema={"sample_id": pl.String})
    counted = counted.group_by("sample_id", maintain_order=True).agg(pl.len().cast(pl.Int64).alias("multiplicity"))
    counted.rechunk().write_parquet(slow, compression="zstd")
    assert parquet.read_bytes() == slow.read_bytes()
    for path in (npy, parquet, slow):
        path.unlink()
