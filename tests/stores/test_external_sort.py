"""Files that are written part by part, against those written at once."""

import io
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation_assets.numeric.identity import packed_uids
from curation_assets.stores import frame_file
from curation_assets.stores.content_hash import frame_sha256, parts_sha256
from curation_assets.stores.parquet import write_as_frame
from curation_assets.stores.subsets import lists_subset, write_sorted_subset
from tests.support.id_lists import unpack_uids


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def npy_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


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


# -- rows part by part ------------------------------------------------------------------------------------------------

FRAMES = st.lists(st.lists(st.tuples(st.integers(-5, 5), st.text(max_size=4)), max_size=9), min_size=1, max_size=5)
SCHEMA = {"number": pl.Int64, "text": pl.String}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FRAMES, st.integers(1, 7), st.sampled_from([0, 40, 1 << 20]))
def test_rows_come_back_in_parts_whether_they_were_written_or_not(
    monkeypatch: pytest.MonkeyPatch, rows: list[list[tuple[int, str]]], size: int, held: int
) -> None:
    monkeypatch.setattr(frame_file, "PART_ROWS", size)
    monkeypatch.setattr(frame_file, "HELD_BYTES", held)
    parts = [pl.DataFrame(part, schema=SCHEMA, orient="row") for part in rows]
    whole = pl.concat(parts)
    kept = frame_file.FrameFile(iter(parts))
    assert kept.height == whole.height
    for _ in range(2):
        heights = [part.height for part in kept.parts()]
        assert heights == ([size] * (whole.height // size) + [whole.height % size] * (whole.height % size > 0) or [0])
        assert kept.frame().equals(whole)
    assert kept.only(["text"]).frame().equals(whole.select("text"))
    wanted = whole.filter(pl.col("number") > 0).select("text")
    assert kept.lazy().filter(pl.col("number") > 0).select("text").collect(engine="streaming").equals(wanted)
    assert parts_sha256(kept.parts, whole.height) == frame_sha256(whole)
    mapped = frame_file.MappedRows(kept.parts())
    for chosen in (np.arange(whole.height), np.arange(0, whole.height, 2)):
        expected = whole[chosen].to_dicts()
        assert mapped.take(chosen) == expected
        assert pickle.loads(pickle.dumps(mapped)).take(chosen) == expected, "in a worker that is not forked"


def test_nothing_is_left_of_rows_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(frame_file, "HELD_BYTES", 0)
    rows = frame_file.FrameFile([pl.DataFrame({"a": [1, 2]})])
    mapped = frame_file.MappedRows(rows.parts())
    assert list(tmp_path.iterdir()) == [], "not even while they are read"
    assert (rows.frame()["a"].to_list(), mapped.take(np.array([1]))) == ([1, 2], [{"a": 2}])


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
