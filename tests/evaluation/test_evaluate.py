"""`curate evaluate suite` and `compare`: scores and correlations that can be checked by eye, and what it refuses."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from curation_assets.cli import app
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.metrics.data_set_score import spearman_interval
from curation_assets.sources.declaration import add_pool
from tests.support.metrics import metric_rows, store_metrics

SUITE = "name,cider,loss,recall\nnone,0,4,10\nsmall,50,2,20\nlarge,100,0,15\n"


def curate(*arguments: object) -> Result:
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
        rows = json.loads(curate("evaluate", "suite", path, "--lower", "loss", "--json").stdout)
        assert [row["dataset"] for row in rows] == list(expected)
        assert [row["score"] for row in rows] == pytest.approx(list(expected.values()))
    shown = curate("evaluate", "suite", table, "--lower", "loss").stdout
    assert [line.split() for line in shown.splitlines()[1:4]] == [
        ["large", "0.8333"], ["small", "0.6667"], ["none", "0.0000"],
    ]  # fmt: skip
    # without --lower the loss counts the other way: none 1/3, small (.5 + .5 + 1) / 3, large (1 + 0 + .5) / 3
    rows = json.loads(curate("evaluate", "suite", table, "--json").stdout)
    assert [row["score"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 0.5])


def test_measures_are_correlated_with_the_scores(tmp_path: Path) -> None:
    """Eight data sets by one metric. The measure orders all but the adversarial one as the metric does."""
    metric = {f"set{i}": i for i in range(7)} | {"RandomCaptions": 0.5}
    measure = {f"set{i}": i * i for i in range(7)} | {"RandomCaptions": 100}
    for name, numbers in (("suite.csv", metric), ("measures.csv", {**measure, "another": 3})):
        lines = "".join(f"{key},{value}\n" for key, value in numbers.items())
        (tmp_path / name).write_text(f"dataset,number\n{lines}")
    arguments = ("suite", tmp_path / "suite.csv", "--metrics", tmp_path / "measures.csv")
    result = curate("evaluate", *arguments, "--adversarial", "RandomCaptions", "--json")
    content = json.loads(result.stdout)
    assert len(content["scores"]) == 8
    (row,) = content["correlations"]
    # ranks of the adversarial set: 2 and 8; set1 … set6 fall by one rank each: 1 − 6 · (36 + 6) / (8 · 63) = .5
    assert (row["all_sets"], row["all_sets_n"]) == (pytest.approx(0.5), 8)
    assert (row["without_adversarial"], row["without_adversarial_n"]) == (pytest.approx(1.0), 7)
    assert row["without_adversarial_low"] is None
    assert (row["all_sets_low"], row["all_sets_high"]) == pytest.approx(spearman_interval(0.5, 8))
    assert "does not have them: another" in one_line(result)
    without = json.loads(curate("evaluate", *arguments, "--json").stdout)["correlations"][0]
    assert without["without_adversarial"] is None
    assert "+0.500" in curate("evaluate", *arguments).stdout


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
    result = curate("evaluate", "suite", tmp_path / "suite.csv")
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
        result = curate("evaluate", "suite", table, *arguments)
        assert result.exit_code == 1, arguments
        assert message in one_line(result)


# -- compare


POOLS = {"first": 0.0, "second": 0.1, "third": 0.2}  # what the pool adds to every value


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pools with metrics of two trainers, and a fourth that trains nothing."""
    home = tmp_path_factory.mktemp("pools")
    (home / "captions.csv").write_text("caption\na red kite over the sea\na dog\n")
    settings = load_settings(home, "embedded")
    for name, base in {**POOLS, "fourth": 0.0}.items():
        trains = name in POOLS
        options = {"downstream": trains, "evaluation_set": "split:0.5"}
        add_pool(settings, name, home / "captions.csv", columns={"url": None}, options=options)
        if not trains:
            continue
        ctx = PoolContext.open(settings, name)
        # above random by .11 .12 .13: sd .01, half of the interval 4.30265 · .01 / √3 = .0248
        gain = 0.11 + base / 10
        seeds = {"meteor": None, "cider": [base + 0.1, base + 0.3]}
        rows = metric_rows("random", seeds, kind="control")
        rows += metric_rows("icc", {"meteor": None, "cider": [base + 0.1 + gain, base + 0.3 + gain]})
        rows += metric_rows("clip", {"meteor": None, "cider": [base + 0.1 - base / 10, base + 0.3 + base / 10]})
        rows += metric_rows("icc", {"cider": [base + 0.5]}, size=None, n=80)
        store_metrics(ctx, "captioning", rows)
        if name != "third":
            recall = {"text_to_image_recall@1": [0.2 + base], "mean_recall@1": [0.1]}
            store_metrics(ctx, "retrieval", metric_rows("random", recall, kind="control") + metric_rows("icc", recall))
    return home


def test_compare_over_pools(home: Path, tmp_path: Path) -> None:
    result = curate("evaluate", "compare", *POOLS, "--home", home, "--out", tmp_path / "comparison.csv")
    assert result.exit_code == 0, result.output
    # the wide lines are sentences, which a terminal breaks
    assert max(len(line) for line in result.stdout.splitlines() if not line.startswith("1 of 1")) <= 100
    shown = " ".join(result.stdout.split())
    assert "captioning, .25 of the pool: 3 pools, 2 seeds" in shown
    assert "Score, .25 of the pool: the mean of metrics, each scaled to 0–1 over these training sets" in shown
    assert "icc 1.000 0.500 0.667" in shown  # cider 1; two recalls that are equal for both, .5 each
    assert "icc 100 .420 (.147 to .693) above: .120 (.095 to .145)" in shown
    # clip: −.00 −.01 −.02 at seed 0 and + .00 .01 .02 at seed 1 are 0 in every pool
    assert "clip 100 .300 (.052 to .548) .000, no interval" in shown
    assert "clip: the same as random in all 3 pairs" in shown
    assert "captioning, subsets of their own size: 3 pools, 1 seed" in shown
    assert "not compared: no random training set of this size" in shown
    assert "1 of 1 comparisons with random are clear" in shown
    assert "pool third, retrieval: it has no downstream/retrieval yet; `curate run third --home" in one_line(result)
    written = pl.read_csv(tmp_path / "comparison.csv")
    assert set(written["metric"]) == {"cider", "meteor", "text_to_image_recall@1", "mean_recall@1"}
    assert set(written.filter(pl.col("metric") == "meteor")["reading"]) == {"no value: METEOR needs Java"}


def test_compare_as_json(home: Path) -> None:
    arguments = ("evaluate", "compare", *POOLS, "--home", home, "--json", "--trainer", "captioning", "--size", ".25")
    content = json.loads(curate(*arguments, "--metric", "cider").stdout)
    rows = {row["policy"]: row for row in content["comparison"]}
    assert set(rows) == {"random", "icc", "clip"}
    assert rows["icc"]["is_clear"] is True
    assert rows["icc"]["reading"] == "above random by .120 (.095 to .145)"
    assert {row["policy"]: row["score"] for row in content["scores"]} == pytest.approx(
        {"icc": 1.0, "random": 0.0, "clip": 0.0}
    )
    own = json.loads(curate(*arguments[:-1], "own").stdout)
    assert {row["size"] for row in own["comparison"]} == {None}


def test_compare_of_one_pool_says_what_the_interval_lacks(home: Path) -> None:
    shown = " ".join(curate("evaluate", "compare", "second", "--home", home).stdout.split())
    assert "one pool: how pools vary is not in the interval" in shown


def test_compare_refuses_in_sentences(home: Path) -> None:
    for arguments, message in (
        (("fourth",), "set options: {downstream: true, evaluation_set: split:0.1} in"),
        (("first", "first"), "each pool once"),
        (("first", "--size", "half"), "--size takes a share of the pool such as .25, or own; got 'half'"),
        (("first", "--size", ".3"), "no training set has the size .3; there are .25, own"),
        (("first", "--metric", "cidre"), "has no metric 'cidre'; did you mean 'cider'"),
        (("first", "--trainer", "caption"), "has no trainer 'caption'; did you mean 'captioning'"),
        (("first", "--out", "table.xlsx"), "--out writes a .csv file"),
        (("nothing",), "no pool 'nothing'"),
    ):
        result = curate("evaluate", "compare", *arguments, "--home", home)
        assert result.exit_code == 1, arguments
        assert message in one_line(result)


def test_compare_names_tables_of_an_older_version(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "home")
    ctx = PoolContext.open(load_settings(tmp_path / "home", "embedded"), "first")
    old = pl.DataFrame({"policy": ["icc"], "seed": [0], "metric": ["cider"], "value": [0.1]})
    ctx.store.materialise("downstream/captioning", lambda: old, code_version="older")
    result = curate("evaluate", "compare", "first", "second", "--home", tmp_path / "home")
    assert result.exit_code == 0
    assert (
        "downstream/captioning is of an older version, without kind, size, n, reason; `curate run first --home"
        in one_line(result)
    )
