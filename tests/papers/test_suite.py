"""`python -m benchmarks.papers suite`: scores and correlations that can be checked by eye, and what it refuses."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from benchmarks.papers.__main__ import app
from benchmarks.papers.correlation import predictive_correlation, spearman_interval

SUITE = "name,cider,loss,recall\nnone,0,4,10\nsmall,50,2,20\nlarge,100,0,15\n"


def papers(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def one_line(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "suite.csv"
    path.write_text(SUITE)
    return path


def test_scores_in_the_order_of_the_file(table: Path, tmp_path: Path) -> None:
    # cider 0 .5 1; loss (lower is better) 0 .5 1; recall 0 1 .5
    expected = {"none": 0.0, "small": 2 / 3, "large": 2.5 / 3}
    pl.read_csv(table).write_parquet(tmp_path / "suite.parquet")
    pl.read_csv(table).write_csv(tmp_path / "suite.tsv", separator="\t")
    for path in (table, tmp_path / "suite.parquet", tmp_path / "suite.tsv"):
        rows = json.loads(papers("suite", path, "--lower", "loss", "--json").stdout)
        assert [row["dataset"] for row in rows] == list(expected)
        assert [row["score"] for row in rows] == pytest.approx(list(expected.values()))
    shown = papers("suite", table, "--lower", "loss").stdout
    assert [line.split() for line in shown.splitlines()[1:4]] == [
        ["large", "0.8333"], ["small", "0.6667"], ["none", "0.0000"],
    ]  # fmt: skip
    # without --lower the loss counts the other way: none 1/3, small (.5 + .5 + 1) / 3, large (1 + 0 + .5) / 3
    rows = json.loads(papers("suite", table, "--json").stdout)
    assert [row["score"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 0.5])


def test_measures_are_correlated_with_the_scores(tmp_path: Path) -> None:
    """Eight data sets by one metric. The measure orders all but the adversarial one as the metric does."""
    metric = {f"set{i}": i for i in range(7)} | {"RandomCaptions": 0.5}
    measure = {f"set{i}": i * i for i in range(7)} | {"RandomCaptions": 100}
    for name, numbers in (("suite.csv", metric), ("measures.csv", {**measure, "another": 3})):
        lines = "".join(f"{key},{value}\n" for key, value in numbers.items())
        (tmp_path / name).write_text(f"dataset,number\n{lines}")
    arguments = ("suite", tmp_path / "suite.csv", "--metrics", tmp_path / "measures.csv")
    result = papers(*arguments, "--adversarial", "RandomCaptions", "--json")
    content = json.loads(result.stdout)
    assert len(content["scores"]) == 8
    (row,) = content["correlations"]
    # ranks of the adversarial set: 2 and 8; set1 … set6 fall by one rank each: 1 − 6 · (36 + 6) / (8 · 63) = .5
    assert (row["all_sets"], row["all_sets_n"]) == (pytest.approx(0.5), 8)
    assert (row["without_adversarial"], row["without_adversarial_n"]) == (pytest.approx(1.0), 7)
    assert row["without_adversarial_low"] is None
    assert (row["all_sets_low"], row["all_sets_high"]) == pytest.approx(spearman_interval(0.5, 8))
    assert "does not have them: another" in one_line(result)
    without = json.loads(papers(*arguments, "--json").stdout)["correlations"][0]
    assert without["without_adversarial"] is None
    assert "+0.500" in papers(*arguments).stdout


def test_interval_of_a_correlation() -> None:
    # atanh .9 = 1.4722; √(1.405 / 5) = .5301, × 1.96 = 1.0390; tanh .4332 = .408, tanh 2.5112 = .987
    assert spearman_interval(0.9, 8) == pytest.approx((0.408, 0.987), abs=1e-3)
    assert spearman_interval(1.0, 8) is None
    assert spearman_interval(0.5, 3) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,a\nx,1\ny,\n", "'y', column 'a': expected a number, got an empty cell"),
        ("name,a\nx,1\ny,NaN\n", "'y', column 'a': expected a number, got an empty cell"),
        ('name,a\nx,1\ny,"0,5"\n', "'y', column 'a': expected a number such as 0.5, got '0,5'"),
        ("name,a\nx,1\ny,inf\n", "expected a number such as 0.5, got 'inf'"),
        ("name,a\nx,1\nx,2\n", "'x' has two rows"),
        ("name,a\nx,1\n", "expected at least two rows below the headings, got 1"),
        ("name,a\n,1\ny,2\n", "row 1 has no name in the column 'name'"),
        ("name\nx\ny\n", "expected a column of names and at least one of numbers"),
        ("name,a,a\nx,1,2\ny,2,3\n", "two columns are named 'a'"),
        ("", "cannot be read as csv"),
    ],
)
def test_wrong_tables_end_with_a_sentence(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "suite.csv").write_text(content)
    result = papers("suite", tmp_path / "suite.csv")
    assert result.exit_code == 1
    assert message in one_line(result)
    assert not result.stdout


def test_wrong_options_end_with_a_sentence(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("name,icc\nNone,1\nSmall,2\n")
    for arguments, message in (
        (("--lower", "los"), "has no column 'los'; did you mean 'loss'"),
        (("--adversarial", "small"), "give both"),
        (("--metrics", other, "--adversarial", "smal"), "has no data set 'smal'; did you mean 'small'"),
        (
            ("--metrics", other),
            "two data sets that both files have, got 0; the names in the first columns must be equal",
        ),
        (("--metrics", tmp_path / "no.csv"), "no file"),
    ):
        result = papers("suite", table, *arguments)
        assert result.exit_code == 1, arguments
        assert message in one_line(result)


def test_foretelling_is_reported_with_and_without_adversarial_sets() -> None:
    found = predictive_correlation([1.0, 2.0, 3.0, 9.0], [0.1, 0.2, 0.3, 0.0], [False, False, False, True])
    assert found["without_adversarial"] == pytest.approx(1.0)
    assert found["all_sets"] == pytest.approx(-0.2)  # ranks 1 2 3 4 and 2 3 4 1: 1 − 6·12/60
    assert predictive_correlation([1.0, 1.0], [0.1, 0.2], [False, False])["all_sets"] is None
