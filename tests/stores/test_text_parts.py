"""Text tables and lists of ids part by part, as read at once."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.numeric.identity import sample_id_from
from curation_assets.stores.text_tables import read_parts, read_rows
from tests.support.id_lists import read_subset

CELLS = st.sampled_from(["a dog", "", '"quoted, with a separator"', '"two\nlines"', "é", "1", '"never closed', "a,b"])
VALUES = st.sampled_from(["a dog", "", None, 1, 2.5, True, ["a", "b"], [], {"a": 1}, float("nan")])
COLUMNS = ("sample_id", "caption", "n")


def outcome(path: Path, in_parts: bool) -> tuple[str, list[object]]:
    """What the reader said, or the cells that it gave."""
    try:
        if in_parts:
            rows = [row for part in read_parts(path, path.suffix) for row in part.to_dicts()]
        else:
            rows = read_rows(path).to_dicts()
    except ValueError as error:
        return str(error), []
    return "", [[str(value) if isinstance(value, dict) else value for value in row.values()] for row in rows]


@given(st.lists(st.tuples(*[CELLS] * 3), max_size=8), st.sampled_from([b"", b"\xff\xfe", b"\xe9"]), st.booleans())
@settings(max_examples=60)
def test_csv_in_parts_is_csv_at_once(rows: list[tuple[str, ...]], undecodable: bytes, has_ends: bool) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.stores.damaged_tables.CHUNK", 2)
        path = Path(folder) / "table.csv"
        lines = "\n".join([",".join(COLUMNS), *map(",".join, rows)]) + "\n" * has_ends
        path.write_bytes(lines.encode().replace("é".encode(), undecodable or "é".encode()))
        assert outcome(path, True) == outcome(path, False)


@given(
    st.lists(st.one_of(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, VALUES)), st.just([1])), max_size=8)
)
@settings(max_examples=60)
def test_json_lines_in_parts_are_json_lines_at_once(rows: list[object]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.stores.damaged_tables.CHUNK", 2)
        path = Path(folder) / "table.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        said, found = outcome(path, True)
        expected = outcome(path, False)
        assert said == expected[0]
        assert len(found) == len(expected[1])


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=12),
    st.sampled_from([".csv", ".tsv", ".jsonl", ".txt", ".npy", ".parquet"]),
    st.sampled_from([1, 3, 1000]),
)
@settings(max_examples=60)
def test_ids_of_any_list_are_sorted_on_disk(rows: list[tuple[int, int]], suffix: str, size: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.stores.damaged_tables.CHUNK", size)
        patch.setattr("curation_assets.stores.subsets.PART_ROWS", size)
        patch.setattr("curation_assets.stores.subsets.TEXT_ROWS", size)
        path = Path(folder) / f"ids{suffix}"
        table = pl.DataFrame(
            {"sample_id": [f"{one * 977:032X}" for one, _ in rows], "multiplicity": [times for _, times in rows]}
        )
        counts = [times for _, times in rows] if suffix not in (".txt", ".npy") else [1] * len(rows)
        if suffix == ".npy":
            np.save(path, np.array(table["sample_id"].to_list()))
        elif suffix == ".txt":
            path.write_text("\n".join(table["sample_id"]))
        elif suffix == ".jsonl":
            table.write_ndjson(path)
        elif suffix == ".parquet":
            table.write_parquet(path)
        else:
            table.write_csv(path, separator="\t" if suffix == ".tsv" else ",")
        ids = [str(sample_id_from(one)) for one in table["sample_id"]]
        assert read_subset(path) == sorted(one for one, times in zip(ids, counts, strict=True) for _ in range(times))
