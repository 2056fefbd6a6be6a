"""The papers' tables from pools whose metrics are written by hand and whose signals follow from the ids."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from benchmarks.papers.__main__ import app
from benchmarks.papers.tables import (
    HERE,
    MAKERS,
    PRINTED,
    Cell,
    PaperTable,
    Sources,
    paper_table,
    printed_tables,
)
from benchmarks.papers.text_methods import CC_STAGES
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.agreement import spearman
from curation_assets.sources.declaration import add_pool
from tests.support.metrics import metric_rows, store_metrics


def papers(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def sources(home: Path, *pools: str) -> Sources:
    settings = load_settings(home, "embedded")
    return Sources([PoolContext.open(settings, name) for name in pools])


def cell_of(table: PaperTable, column: str, origin: str = HERE, **labels: object) -> Cell:
    (row,) = [
        row
        for row in table.rows
        if row.origin == origin and all(row.labels.get(name) == value for name, value in labels.items())
    ]
    return row.cells[column]


def test_every_table_has_printed_facts_and_a_maker() -> None:
    assert set(MAKERS) <= set(printed_tables())
    known = {
        "title",
        "source",
        "not_comparable",
        "percent",
        "rows",
        "misprints",
        "order_by",
        "not_on_record",
        "command",
    }
    for name, printed in printed_tables().items():
        assert {"title", "source", "not_comparable"} <= set(printed) <= known, name
        assert ("command" in printed) == (name not in MAKERS), name


def test_printed_numbers_add_up() -> None:
    """What formulas.md derives from them (§2.5, §13.9)."""
    sieve = {(row["training_set"], row["scale"]): row for row in printed_tables()["sieve1"]["rows"]}
    gain = sieve["sieve", "medium"]["average"] - sieve["clip", "medium"]["average"]
    assert gain == pytest.approx(1.8)
    assert sieve["sieve_clip", "medium"]["average"] - sieve["clip", "medium"]["average"] == pytest.approx(2.6)
    assert sieve["sieve_clip", "large"]["average"] - sieve["clip", "large"]["average"] == pytest.approx(1.7)
    assert {row["average"] for row in printed_tables()["sieve-encoders"]["rows"]} >= {34.03}, "SIEVE alone, everywhere"
    independent = printed_tables()["sieve8"]["rows"][2]
    for k in (10, 20, 30):
        assert independent[f"top {k} %"] == pytest.approx(100 * (k / 100) / (2 - k / 100), abs=0.005)


@pytest.mark.slow
def test_icc1_puts_the_printed_row_below_ours(home: Path) -> None:
    table = paper_table("icc1", sources(home, "first", "second"))
    assert table.absent is None
    cider = cell_of(table, "cider", training_set="icc", size=0.5)
    # pools: (.02 + .04) / 2 = .03 and .13; sd .0707, half of the interval 12.7062 · .0707 / √2 = .635
    assert (cider.value, cider.low, cider.high) == pytest.approx((0.08, 0.08 - 0.63531, 0.08 + 0.63531), abs=1e-4)
    assert cell_of(table, "cider", PRINTED, training_set="icc_after_clip") == Cell(pytest.approx(0.358))
    assert cell_of(table, "bert_score", PRINTED, training_set="clip").value == 0.75  # printed as it is, not in percent
    order = [(row.labels["training_set"], row.origin) for row in table.rows]
    assert order[:3] == [("clip", HERE), ("clip", HERE), ("clip", PRINTED)]
    assert "meteor: no value: METEOR needs Java." in table.remarks
    assert any(remark.startswith("Of the printed numbers: bert_score is about") for remark in table.remarks)
    assert not any("Spearman" in remark for remark in table.remarks)  # two training sets in common have no order
    one = paper_table("icc1", sources(home, "first"))
    assert "One pool: intervals are over its seeds, and how pools vary is not in them." in one.remarks


def test_order_of_training_sets_against_the_printed_one(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "pools", tmp_path / "pools")
    ctx = PoolContext.open(load_settings(tmp_path, "embedded"), "first")
    # printed cider: random .05, clip .025, tmars .056, icc_after_clip .358; random and tmars change places here
    values = {"random": 0.3, "clip": 0.1, "tmars": 0.2, "icc_after_clip": 0.4}
    store_metrics(ctx, "captioning", [r for name, v in values.items() for r in metric_rows(name, {"cider": [v]})])
    # 1 − 6 · 2 / (4 · 15) = .8
    (sentence,) = [text for text in paper_table("icc1", Sources([ctx])).remarks if "Spearman" in text]
    assert sentence == (
        "Order by cider at .25 and the printed one: Spearman .800 (−.819 to .998) over 4 training sets."
    )


def test_sieve8_equals_a_slow_twin(home: Path) -> None:
    assert printed_tables()["sieve8"]["source"] == "SIEVE, Table 8, DataComp's medium pool"
    table = paper_table("sieve8", sources(home, "first", "second"))
    ctx = PoolContext.open(load_settings(home, "embedded"), "first")
    kept = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect().height
    tops = {}
    for name in ("sieve", "clip_score"):
        values = ctx.store.scan(f"signals/{name}").select("sample_id", "value").collect().drop_nulls()
        best = values.sort("value", descending=True)["sample_id"].to_list()
        tops[name] = [set(best[: int(kept * share + 0.5)]) for share in (0.1, 0.2, 0.3)]
    for number, column in enumerate(("top 10 %", "top 20 %", "top 30 %")):
        left, right = tops["sieve"][number], tops["clip_score"][number]
        cell = cell_of(table, column, pool="first", ranking="sieve")
        assert cell.value == pytest.approx(len(left & right) / len(left | right))
    assert cell_of(table, "top 20 %", PRINTED, ranking="sieve_clip").value == pytest.approx(0.44)
    chance = cell_of(table, "top 30 %", pool="second", ranking="independent rankings").value  # 18 of 60: exact
    assert chance == pytest.approx(0.3 / 1.7)
    mean = cell_of(table, "top 10 %", pool="mean of 2", ranking="sieve")
    both = [cell_of(table, "top 10 %", pool=pool, ranking="sieve").value or 0.0 for pool in ("first", "second")]
    assert mean.value == pytest.approx(sum(both) / 2)


def test_align7_compares_at_equal_shares_removed(home: Path) -> None:
    table = paper_table("align7", sources(home, "first", "second"))
    assert {row.labels["removed"] for row in table.rows if row.origin == HERE} == {"50 %", "80 %", "50, 80 %, mean"}
    difference = cell_of(table, "cider", training_set="reward − clip")
    # pools .075 and .085: sd .00707, half 12.7062 · .00707 / √2 = .0635
    assert (difference.value, difference.low) == pytest.approx((0.08, 0.08 - 0.063531), abs=1e-4)
    assert cell_of(table, "cider", PRINTED, training_set="reward − BLIP score").value == pytest.approx(0.02375)
    assert "Not at hand: 60 %, 70 % removed; the option `downstream_sizes` adds them." in table.remarks


def test_rao_tables_agree_with_each_other(home: Path) -> None:
    """rao2 correlates the means of a signal over subsets, taken here from its table, with rao1's Score."""
    both = sources(home, "first")
    rao1, rao2 = paper_table("rao1", both), paper_table("rao2", both)
    names = ("clip", "icc", "sieve")
    scores = [cell_of(rao1, "Score", training_set=name, size=0.5).value or 0.0 for name in names]
    # cider and recall: 0 .01 .02 .03 .10 → 0 .1 .2 .3 1
    assert scores == pytest.approx([0.1, 0.2, 0.3])
    ctx = both.pools[0]
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").select("sample_id").collect()
    signals = {
        name: samples.join(ctx.store.scan(f"signals/{name}").select("sample_id", "value").collect(), on="sample_id")
        for name in ("icc", "clip_score", "sieve")
    }
    half = int(samples.height / 2 + 0.5)
    icc = signals["icc"]
    means = {"random": icc["value"].mean()}
    for name, signal in (("clip", "clip_score"), ("icc", "icc"), ("sieve", "sieve")):
        best = signals[signal].drop_nulls().sort("value", descending=True)["sample_id"].head(half)
        means[name] = icc.filter(pl.col("sample_id").is_in(best.to_list()))["value"].mean()
    expected = spearman(np.array([means[name] for name in ("random", *names)]), np.array([0.0, *scores]))
    cell = cell_of(rao2, "spearman", measure="icc", size=0.5)
    assert cell.value == pytest.approx(expected)
    assert next(row.labels["training_sets"] for row in rao2.rows) == 4  # the pool has no policy reward


def test_agreement_with_people_beside_the_printed_one(home: Path, tmp_path: Path) -> None:
    for name in ("icc3", "icc4", "icc5"):
        assert "agreement takes rated captions" in str(paper_table(name, sources(home, "first")).absent)
    settings = load_settings(tmp_path, "photos")
    (tmp_path / "captions.csv").write_text("caption\na red kite\n")
    add_pool(settings, "texts", tmp_path / "captions.csv", columns={"url": None}, options={"distil": True})
    ctx = PoolContext.open(settings, "texts")
    scorers = [("vba", "text_similarity", False), ("vba", "text_similarity", True), ("sba_linear", "cosine", False),
               ("fused", None, False), ("icc", None, False), ("icc, the pool's own student", None, False),
               ("clip_stroop", None, False), ("caption length", None, False)]  # fmt: skip
    frame = pl.DataFrame(
        {
            "benchmark": ["rated captions"] * len(scorers),
            "scorer": [name for name, _, _ in scorers],
            "similarity": [similarity for _, similarity, _ in scorers],
            "standardised": [per_length for _, _, per_length in scorers],
            "saw_ratings": [name == "fused" for name, _, _ in scorers],
            "n": [300] * len(scorers),
        }
    ).with_columns(
        pl.lit(value + step).alias(f"{name}{end}")
        for name, value in (("pearson", 0.6), ("spearman", 0.5), ("kendall", 0.4))
        for end, step in (("", 0.0), ("_low", -0.1), ("_high", 0.05))
    )
    ctx.store.materialise("distilled/agreement", lambda: frame, code_version="test")
    tables = {name: paper_table(name, Sources([ctx])) for name in ("icc3", "icc4", "icc5")}
    ours = {name: [row.labels["scorer"] for row in table.rows if row.origin == HERE] for name, table in tables.items()}
    assert ours == {
        "icc3": ["icc", "icc, the pool's own student", "clip_stroop", "caption length"],
        "icc4": ["vba", "vba", "sba_linear"],
        "icc5": ["fused", "icc", "icc, the pool's own student"],
    }
    fused = tables["icc5"].rows[0]
    assert fused.labels["rated"] == "rated captions, fitted on them"
    assert fused.cells["pearson"] == Cell(0.6, 0.5, pytest.approx(0.65))
    assert tables["icc5"].rows[1].origin == PRINTED, "the printed row of the fusion stands below ours"
    assert tables["icc5"].rows[1].cells["pearson"].value == 0.6
    assert [row.labels["per_length"] for row in tables["icc4"].rows if row.origin == HERE] == ["", "yes", ""]

    rng = np.random.default_rng(0)
    rating = rng.integers(0, 4, 60).astype(float)
    noise = rng.normal(size=(2, 60))
    values = {"fused, out of fold": rating + noise[0], "fused": rating, "icc": rating + noise[1] / 2,
              "caption length": np.full(60, 5.0)}  # fmt: skip
    names = [f"caption {number}" for number in range(60)]
    scored = pl.concat(
        pl.DataFrame(
            {"benchmark": "rated captions", "caption": names, "rating": rating, "scorer": scorer, "score": score}
        )
        for scorer, score in values.items()
    ).with_columns(saw_ratings=pl.col("scorer").is_in(["fused", "icc"]))
    ctx.store.materialise("distilled/rated_scores", lambda: scored, code_version="test")
    add_pool(settings, "others", tmp_path / "captions.csv", columns={"url": None}, options={"distil": True})
    other = PoolContext.open(settings, "others")
    before = scored.with_columns(-pl.col("score")).reverse()
    other.store.materialise("distilled/rated_scores", lambda: before, code_version="test")
    other.store.materialise("distilled/agreement", lambda: frame, code_version="test")
    paired = paper_table("icc5", Sources([ctx, other]))
    rows = {(row.labels.get("pool"), row.labels["scorer"]): row for row in paired.rows}
    held_out = rows["texts", "fused, out of fold"].cells["pearson"].value
    assert held_out == pytest.approx(np.corrcoef(values["fused, out of fold"], rating)[0, 1])
    better = rows["texts", "icc − fused, out of fold"]
    assert better.cells["pearson"].value == pytest.approx(np.corrcoef(values["icc"], rating)[0, 1] - held_out)
    assert better.cells["pearson"].low > 0
    assert better.labels["rated"] == "rated captions, fitted on them"
    assert rows["texts", "caption length − fused, out of fold"].cells["pearson"] == Cell(None), "constant"
    assert rows["texts − others", "fused, out of fold"].cells["pearson"].value == pytest.approx(2 * held_out)
    of_student = rows["texts − others", "icc"].cells["pearson"].value
    assert of_student == pytest.approx(2 * np.corrcoef(values["icc"], rating)[0, 1])
    assert any(remark.startswith("A − B") for remark in paired.remarks)
    shown = papers("tables", "texts", "--table", "icc4", "--home", tmp_path)
    assert shown.exit_code == 0, shown.output
    line = next(line for line in shown.output.splitlines() if "edit_similarity" in line and line.split()[0] == "vba")
    assert ".41" in line, "VBA by edit similarity, printed"


def test_icc6_compares_the_parts_of_icc(home: Path, tmp_path: Path) -> None:
    absent = paper_table("icc6", sources(home, "first")).absent
    assert absent is not None
    assert "rank_by teachers.vba, teachers.sba, distilled.targets, signals.icc" in absent
    shutil.copytree(home / "pools", tmp_path / "pools")
    settings = load_settings(tmp_path, "embedded")
    (tmp_path / "pools" / "second").mkdir()
    (tmp_path / "pools" / "second" / "by_vba.yaml").write_text("name: by_vba\nrank_by: teachers.vba\ncount: 10\n")
    ctx = PoolContext.open(settings, "second")
    rows = [
        row
        for policy, value in (("random", 0.1), ("icc", 0.3), ("by_vba", 0.2), ("clip", 0.4))
        for size in (0.5, 0.2)
        if policy != "by_vba" or size == 0.2
        for row in metric_rows(policy, {"cider": [value]}, size=size)
    ]
    store_metrics(ctx, "captioning", rows)
    table = paper_table("icc6", Sources([ctx]))
    parts = {row.labels["training_set"]: row.labels["ranked_by"] for row in table.rows}
    assert parts == {"random": "–", "icc": "student", "by_vba": "VBA, teacher"}
    assert {row.labels["size"] for row in table.rows} == {0.2}  # the one at which both parts are
    assert cell_of(table, "cider", training_set="by_vba").value == 0.2


def test_conceptual_captions_beside_the_printed_rates(home: Path, tmp_path: Path) -> None:
    assert "conceptual_captions_overlap" in str(paper_table("cc-stages", sources(home, "first")).absent)
    settings = load_settings(tmp_path, "embedded")
    (tmp_path / "captions.csv").write_text("caption\na red kite\n")
    add_pool(settings, "texts", tmp_path / "captions.csv", columns={"url": None})
    ctx = PoolContext.open(settings, "texts")
    rows = pl.DataFrame({"source_row": range(20)}, schema={"source_row": pl.Int64})
    dropped = pl.when(pl.col("source_row") < 6).then(pl.lit("image"))
    verdicts = rows.with_columns(
        dropped.alias("stage"), pl.lit(None, pl.String).alias("reason"), pl.lit("texts-000000").alias("shard")
    )
    ctx.store.write("fused/conceptual_captions", verdicts, code_version="test")
    for name in CC_STAGES.values():
        rules = rows.with_columns(pl.lit("too_small").alias("rule"))
        ctx.store.write(f"signals/{name}", rules, "texts-000000", code_version="test")
    table = paper_table("cc-stages", Sources([ctx]))
    assert cell_of(table, "candidates", stage="image").value == 20
    assert cell_of(table, "passed", stage="image").value == 14
    assert cell_of(table, "share", stage="image").value == 0.7
    assert cell_of(table, "share", PRINTED, stage="image").value == 0.35
    assert [row.origin for row in table.rows] == [HERE, PRINTED] * 4 + [HERE], "concepts have no printed rate"


def test_the_command_writes_all_and_lists_what_is_absent(home: Path, tmp_path: Path) -> None:
    shown = papers("tables", "first", "second", "--home", home)
    assert shown.exit_code == 0, shown.output
    assert "cc-stages: absent." in shown.stdout
    assert "± is half of the 95 % interval." in shown.stdout
    words = " ".join(shown.stdout.split())
    assert "icc_after_clip .0125 100,000 printed .101 .154 .354 .358 .103 .900" in words
    content = json.loads(papers("tables", "first", "second", "--home", home, "--json").stdout)
    assert [table["table"] for table in content] == list(MAKERS)
    rows = {table["table"]: table["rows"] for table in content}
    printed = [row for row in rows["icc2"] if row["origin"] == PRINTED and row["training_set"] == "clip"]
    assert {row["evaluation_set"] for row in printed} == {"COCO", "Flickr30k"}
    out = tmp_path / "tables.md"
    assert papers("tables", "first", "--home", home, "--out", out).exit_code == 0
    text = out.read_text()
    assert "| evaluation set | training set | size | samples |  | text_to_image_recall@1 |" in text
    assert "## cc-stages: Candidates left after each stage of Conceptual Captions\n\nAbsent: " in text
    again = papers("tables", "first", "--home", home, "--out", out)
    assert again.exit_code == 1
    assert "is never overwritten" in again.output
    assert out.read_text() == text


def test_a_named_table_that_is_absent_exits_1_and_says_what_to_set(home: Path) -> None:
    for pool, name, message in (
        ("texts", "icc1", "set options: {downstream: true, evaluation_set: split:0.1} in"),
        ("texts", "sieve8", "pool texts has no signals/sieve and no signals/clip_score"),
        ("texts", "align7", "No models are trained on this pool's subsets"),
        ("texts", "rao2", "No models are trained on this pool's subsets"),
        ("first", "cc-stages", "to the option `methods` in"),
    ):
        result = papers("tables", pool, "--table", name, "--home", home)
        assert result.exit_code == 1, name
        assert message in " ".join(result.stderr.split()), result.stderr
    assert papers("tables", "texts", "--home", home).exit_code == 0


def test_wrong_arguments_end_with_a_sentence(home: Path) -> None:
    for arguments, message in (
        (("first", "--table", "icc11"), "has no table 'icc11'; did you mean 'icc1'"),
        (("first", "--json", "--markdown"), "--json or --markdown, one of them"),
        (("first", "first"), "each pool once"),
        (("nothing",), "no pool 'nothing'"),
    ):
        result = papers("tables", *arguments, "--home", home)
        assert result.exit_code == 1, arguments
        assert message in " ".join(result.stderr.split())


def test_splits_count_examples_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("caption\na red Kite\na dog\nA red kite over the sea\n")
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "texts", tmp_path / "captions.csv", columns={"url": None})
    ctx = PoolContext.open(settings, "texts")
    run_with_upstream(ctx, "raw/samples")
    table = paper_table("cc-splits", Sources([ctx]))
    expected = {
        "examples": 3,
        "unique_tokens": 7,
        "tokens_mean": 11 / 3,
        "tokens_sd": np.std([3, 2, 6]),
        "tokens_median": 3,
    }
    for column, value in expected.items():
        assert cell_of(table, column, split="train").value == pytest.approx(value), column
    assert cell_of(table, "examples", PRINTED, split="train").value == 3318333
    assert [row.origin for row in table.rows if row.labels["split"] == "train"] == [HERE, PRINTED]


def test_a_pair_of_files_of_ids_is_compared_by_pool_and_seed(home: Path, tmp_path: Path) -> None:
    absent = str(paper_table("cc-pair", sources(home, "first")).absent)
    assert "downstream_subsets: {coco: FILE.npy, cc: FILE.npy}" in absent
    shutil.copytree(home / "pools", tmp_path / "pools")
    settings = load_settings(tmp_path, "embedded")
    pools = []
    for name, gain in (("first", 0.1), ("second", 0.3)):
        ctx = PoolContext.open(settings, name)
        rows = metric_rows("coco", {"cider": [0.4 + gain, 0.5 + gain]}, size=None, kind="file")
        rows += metric_rows("cc", {"cider": [0.4, 0.5]}, size=None, kind="file")
        store_metrics(ctx, "captioning", rows)
        pools.append(ctx)
    table = paper_table("cc-pair", Sources(pools))
    difference = cell_of(table, "cider", training_set="coco − cc")
    # the pool is the unit: .1 and .3, mean .2, half of the interval 12.7062 · .1414 / √2
    assert (difference.value, difference.high) == pytest.approx((0.2, 0.2 + 12.7062 * 0.1), abs=1e-4)
    assert cell_of(table, "cider", training_set="cc").value == pytest.approx(0.45)
