"""Teacher and student timed in one run."""

from pathlib import Path

import polars as pl
import pytest

from benchmarks.throughput import icc_throughput, main
from curation_assets.core.progress import Silent
from curation_assets.core.settings import load_settings


def test_the_script_times_the_shipped_models_against_a_student(
    student: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "results" / "speed.csv"
    arguments = ["--seconds", "0.05", "--batch-size", "2", "--out", str(out)]
    arguments += ["--role", f"student=path:{student}"]
    main(arguments)
    assert str(out) in capsys.readouterr().out
    table = pl.read_csv(out)
    assert table["scorer"].to_list() == ["vba", "sba", "icc"]
    assert (table["captions"] % 2 == 0).all()
    assert (table["captions"] >= 2).all()
    speed = dict(table.select("scorer", "captions_per_second").iter_rows())
    assert speed["icc"] > speed["vba"], "the student exists to be faster than a diffusion model"
    relative = dict(table.select("scorer", "relative_to_student").iter_rows())
    assert relative["icc"] == 1.0
    assert relative["vba"] == pytest.approx(speed["vba"] / speed["icc"])
    hours = dict(table.select("scorer", "hours_for_8m_captions").iter_rows())
    assert hours["vba"] == pytest.approx(8e6 / speed["vba"] / 3600)


def test_published_speeds_give_the_published_hours() -> None:
    """formulas.md §13.16: .45, .2 and 45 captions per second are 4,938, 11,111 and 49.4 hours."""
    from benchmarks.throughput import PAPER_POOL

    assert [round(PAPER_POOL / rate / 3600, 1) for rate in (0.2, 0.45, 45)] == [11111.1, 4938.3, 49.4]


def test_nothing_to_time_is_refused() -> None:
    profile = load_settings(None, "embedded").profile
    with pytest.raises(ValueError, match="not blank"):
        icc_throughput(profile, [" "], seconds=1, batch_sizes=[1], progress=Silent())
    with pytest.raises(ValueError, match="above 0"):
        icc_throughput(profile, ["a"], seconds=1, batch_sizes=[0], progress=Silent())
