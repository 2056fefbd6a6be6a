"""A large Parquet file scored part by part: the same table as in one piece, and a stopped call goes on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from curation_assets.methods import get_method
from curation_assets.scoring.files import columns_and_rows, score_file, unfinished_folder
from curation_assets.stores import parquet

ICC = get_method("icc")
OTHER_ROLES = {"language_identifier": ICC.example.roles["language_identifier"]}


class Lengths:
    """A student whose value is the caption's length; it stops the run at its `stop_at`-th call."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[str] = []
        self.calls = 0
        self.stop_at = stop_at

    def score_captions(self, captions: Sequence[str]) -> np.ndarray:
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        self.seen += captions
        return np.array([float(len(caption)) for caption in captions])


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """23 rows, a part of 5; one caption is blank, one is null."""
    monkeypatch.setattr(parquet, "PART_ROWS", 5)
    captions = [*("x" * number for number in range(1, 22)), " ", None]
    table = pl.DataFrame({"caption": captions, "url": [f"u{number}" for number in range(23)], "other": range(23)})
    table.write_parquet(tmp_path / "in.parquet", row_group_size=4)
    return tmp_path / "in.parquet"


@pytest.mark.parametrize("details", [False, True])
def test_parts_give_the_same_table(source: Path, details: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = source.with_name("parts.parquet")
    assert columns_and_rows(source) == (["caption", "url", "other"], 23)
    done: list[int] = []
    score_file(
        ICC, source, out, {"student": Lengths(), **OTHER_ROLES}, made_by={}, progress=done.append, details=details
    )
    monkeypatch.setattr(parquet, "PART_ROWS", 1000)
    whole = score_file(
        ICC, source, source.with_name("whole.parquet"), {"student": Lengths(), **OTHER_ROLES}, details=details
    )
    assert_frame_equal(pl.read_parquet(out), whole)
    assert whole["icc"].to_list() == [*map(float, range(1, 22)), None, None]
    assert whole["icc_reason"].to_list()[-2:] == ["empty_caption", "no_caption"]
    assert sum(done) == 23
    assert not unfinished_folder(out).exists()


def test_a_stopped_call_goes_on_after_the_finished_rows(source: Path) -> None:
    """Stopped in the third part; what the first two parts and the third's first batch gave is not computed again."""
    out = source.with_name("out.parquet")
    first, second = Lengths(stop_at=8), Lengths()
    with pytest.raises(KeyboardInterrupt):
        score_file(ICC, source, out, {"student": first, **OTHER_ROLES}, made_by={"model": "a"}, batch_size=2)
    assert not out.exists()
    assert len(first.seen) == 12
    score_file(ICC, source, out, {"student": second, **OTHER_ROLES}, made_by={"model": "a"}, batch_size=2)
    assert first.seen + second.seen == ["x" * number for number in range(1, 22)]
    assert pl.read_parquet(out)["icc"].drop_nulls().to_list() == list(range(1, 22))


def test_other_models_begin_anew(source: Path) -> None:
    out = source.with_name("out.parquet")
    with pytest.raises(KeyboardInterrupt):
        score_file(
            ICC, source, out, {"student": Lengths(stop_at=4), **OTHER_ROLES}, made_by={"model": "a"}, batch_size=2
        )
    again = Lengths()
    score_file(ICC, source, out, {"student": again, **OTHER_ROLES}, made_by={"model": "b"}, batch_size=2)
    assert len(again.seen) == 21
    assert not unfinished_folder(out).exists()


def test_a_file_without_captions_or_with_scores_is_refused(source: Path, tmp_path: Path) -> None:
    pl.read_parquet(source).rename({"caption": "icc"}).write_parquet(tmp_path / "named.parquet")
    with pytest.raises(ValueError, match=r"expected a column of .*, got \['icc', 'url', 'other'\]"):
        score_file(ICC, tmp_path / "named.parquet", tmp_path / "out.parquet", {})
    pl.read_parquet(source).with_columns(icc=1).write_parquet(tmp_path / "scored.parquet")
    with pytest.raises(ValueError, match=r"already has the columns \['icc'\]"):
        score_file(ICC, tmp_path / "scored.parquet", tmp_path / "out.parquet", {})
