"""What a takedown looks for is found, or a file that cannot be looked at is named."""

from pathlib import Path

import polars as pl
import pytest

from curation_assets.stores.scrubbing import UNREAD, Needles

CAPTION = "a caption that no other sample has"
NEEDLES = Needles(frozenset({CAPTION}), frozenset())


@pytest.mark.parametrize("name", ["data.parquet", ".data.parquet.tmp-host-1-01234567.parquet", "part.tar", "runs.db"])
@pytest.mark.parametrize(
    ("data", "expected"), [(b"", set()), (b"PAR1 half of it", {UNREAD}), (CAPTION.encode(), {UNREAD, CAPTION})]
)
def test_a_file_that_is_being_written_is_looked_at_by_bytes(
    tmp_path: Path, name: str, data: bytes, expected: set[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert NEEDLES.matches_in(path) == expected


def test_a_table_cut_short_is_not_taken_for_one_without_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pl.DataFrame({"caption": [CAPTION, "another"] * 500}).write_parquet(path, compression="zstd")
    assert NEEDLES.matches_in(path) == {CAPTION}
    path.write_bytes(path.read_bytes()[:-100])
    assert UNREAD in NEEDLES.matches_in(path)
