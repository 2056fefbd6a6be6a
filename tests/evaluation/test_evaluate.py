"""`curate evaluate compare`: means and differences that can be checked by eye, and what it refuses."""

import json
import shutil
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from typer.testing import Result

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.sources.declaration import add_pool
from tests.support import command
from tests.support.metrics import metric_rows, store_metrics

curate = partial(command.curate, width=100)


def one_line(result: Result) -> str:
    return " ".join(result.output.split())


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
