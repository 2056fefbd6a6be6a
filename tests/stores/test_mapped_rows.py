"""Rows on disk as a frame, against the frame of all parts."""

import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.stores.mapped_rows import mapped_rows, slices

SCHEMA = {"number": pl.Int64, "text": pl.String, "flag": pl.Boolean, "texts": pl.List(pl.String)}
ROW = st.tuples(st.integers(-5, 5) | st.none(), st.text(max_size=30) | st.none(), st.booleans(), st.lists(st.text()))


@given(st.lists(st.lists(ROW, max_size=9), min_size=1, max_size=5))
def test_rows_of_parts_are_those_of_one_frame(
    parts: list[list[tuple[int | None, str | None, bool, list[str]]]],
) -> None:
    frames = [pl.DataFrame(rows, schema=SCHEMA, orient="row") for rows in parts]
    whole = pl.concat(frames)
    rows = mapped_rows(iter(frames))
    assert rows.equals(whole)
    assert rows.schema == whole.schema
    assert pl.concat(slices(rows)).equals(whole)
    table = rows.to_arrow(compat_level=pl.CompatLevel.newest())
    assert [{name: table[name][at].as_py() for name in SCHEMA} for at in range(rows.height)] == whole.to_dicts()


def test_nothing_is_left_of_the_file_and_the_rows_are_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    part = pl.DataFrame({"text": [f"a text of more than twelve letters, {number}" for number in range(100_000)]})
    rows = mapped_rows(part.filter(pl.int_range(pl.len()) % 10 == number) for number in range(10))
    assert list(tmp_path.iterdir()) == [], "not even while they are read"
    assert rows.height == 100_000
    assert rows["text"].str.len_bytes().sum() == part["text"].str.len_bytes().sum()
    assert pa.total_allocated_bytes() < rows.estimated_size() / 10
