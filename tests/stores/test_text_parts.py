"""Text tables and lists of ids part by part, as read at once."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from curation_assets.numeric.identity import sample_id_from
from curation_assets.stores.damaged_tables import ROW_REASON, sound_parts
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
        path = Path(folder) / "table.csv"
        lines = "\n".join([",".join(COLUMNS), *map(",".join, rows)]) + "\n" * has_ends
        path.write_bytes(lines.encode().replace("é".encode(), undecodable or "é".encode()))
        expected = outcome(path, False)
        patch.setattr("curation_assets.stores.damaged_tables.CHUNK", 2)
        assert outcome(path, True) == expected


@given(
    st.lists(st.one_of(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, VALUES)), st.just([1])), max_size=8)
)
@settings(max_examples=60)
def test_json_lines_in_parts_are_json_lines_at_once(rows: list[object]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "table.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        expected = outcome(path, False)
        patch.setattr("curation_assets.stores.damaged_tables.CHUNK", 2)
        said, found = outcome(path, True)
        assert said == expected[0]
        assert len(found) == len(expected[1])


NUMBERS = st.sampled_from([None, 1, 2.5, -(2**70), float("nan")])


@given(
    rows=st.lists(st.fixed_dictionaries({}, optional={"caption": VALUES, "id": NUMBERS, "more": CELLS}), max_size=8),
    columns=st.sampled_from([["caption", "id"], ["id"], ["caption"]]),
    suffix=st.sampled_from([".jsonl", ".csv", ".tsv", ".parquet"]),
    wrong=st.sampled_from([b"", b"\xe9"]),
)
@settings(max_examples=100)
@example(rows=[{"id": 1}, {"id": 1}, {"id": float("nan")}], columns=["id"], suffix=".jsonl", wrong=b"")
@example(rows=[{"id": 1}, {"id": 1}, {"id": 2**70}], columns=["id"], suffix=".jsonl", wrong=b"")
def test_some_columns_in_parts_are_those_read_at_once(
    rows: list[dict[str, object]], columns: list[str], suffix: str, wrong: bytes
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / f"table{suffix}"
        names = ["more", "caption", "id"]
        if suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            cells = {name: [None if name not in row else str(row[name]) for row in rows] for name in names}
            table = pl.DataFrame(cells, schema=dict.fromkeys(names, pl.String))
            if suffix == ".parquet":
                table.write_parquet(path)
            else:
                table.write_csv(path, separator="\t" if suffix == ".tsv" else ",")
                path.write_bytes(path.read_bytes().replace("é".encode(), wrong or "é".encode()))
        optional = {"id"} & set(columns)

        def read(rows_of_part: int) -> tuple[str, list[str]]:
            patch.setattr("curation_assets.stores.damaged_tables.CHUNK", rows_of_part)
            patch.setattr("curation_assets.stores.damaged_tables.PART_ROWS", rows_of_part)
            patch.setattr("curation_assets.stores.parquet.PART_ROWS", rows_of_part)
            try:
                parts = list(sound_parts(path, columns, optional=optional))
            except ValueError as error:
                return str(error), []
            assert parts[0].height == 0
            assert max(part.height for part in parts) <= rows_of_part
            return "", [repr(row) for part in parts for row in part.rows()]

        assert read(2) == read(1000)


def test_a_file_whose_last_row_is_damaged_gives_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """polars gives its first rows before it sees the damage; what is left is read record by record."""
    monkeypatch.setattr("curation_assets.stores.damaged_tables.PART_ROWS", 1000)
    rows, path = 200_000, tmp_path / "rows.csv"
    path.write_bytes(b"caption\n" + b"".join(b"%d\n" % row for row in range(rows)) + b"\xe9\n")
    heights, found, reasons = [], [], []
    for part in sound_parts(path):
        heights.append(part.height)
        found += part["caption"].to_list()
        reasons += part[ROW_REASON].drop_nulls().to_list()
    assert 1000 in heights, "polars read a part of it"
    assert found == [*map(str, range(rows)), None]
    assert reasons == ["cell_not_decodable:caption"]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=12),
    st.sampled_from([".csv", ".tsv", ".jsonl", ".txt", ".npy", ".parquet"]),
    st.sampled_from([1, 3, 1000]),
)
@settings(max_examples=60)
def test_ids_of_any_list_are_sorted_on_disk(rows: list[tuple[int, int]], suffix: str, size: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.stores.damaged_tables.CHUNK", size)
        patch.setattr("curation_assets.stores.damaged_tables.PART_ROWS", size)
        patch.setattr("curation_assets.stores.parquet.PART_ROWS", size)
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
