"""Length against ratings, and how every part of ICC agrees with people: one table each, as Dagster sees them."""

from pathlib import Path
from typing import Any

import dagster as dg
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
from scipy.special import expit, logit
from scipy.stats import kendalltau, pearsonr, spearmanr

from curation_assets.definitions import build_definitions
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import read_weights
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.run_table import NO_WARNINGS, CheckResult, checks_of, run_table
from curation_assets.flow.table import Table
from curation_assets.numeric.fusion import fuse, held_out_fusion, repeated_held_out_fusion
from curation_assets.numeric.similarity import edit_similarity
from curation_assets.numeric.standardise import length_evidence, standardise
from curation_assets.outputs.report.pictures import plane_figure
from curation_assets.stages.standardised.tables import read_statistics
from curation_assets.stages.teachers.tables import read_rated
from tests.conftest import FinishedPool
from tests.support.captions import CONCRETE
from tests.support.teacher_scores import CAPTIONS, SHARD, make, plant, with_teacher_scores

TEACHERS = ("vba", "sba")


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes would load the model libraries once more."""
    monkeypatch.setenv("CURATION_WORKERS", "1")


def with_teachers(home: Path, *, length_counts: bool = False, **options: Any) -> tuple[PoolContext, dict[str, Table]]:
    """A pool whose teachers and rated captions are planted: VBA knows concreteness, SBA knows little.

    `length_counts`: short captions are the vague ones, and both teachers see it.
    """
    (home / "benchmark.csv").parent.mkdir(parents=True, exist_ok=True)
    ctx, tables = with_teacher_scores(home, **options)
    rng = np.random.default_rng(1)
    longest = max(len(text.split()) for text in CAPTIONS)
    captions = [
        text + " indeed" * (i % 5 if length_counts else longest + i % 3 - len(text.split()))
        for i, text in enumerate(CAPTIONS * 4)
    ]
    lengths = np.array([len(text.split()) for text in captions])
    is_concrete = np.array([text in CONCRETE for text in CAPTIONS * 4])
    signal = (lengths - lengths.mean()) / lengths.std() if length_counts else 2.0 * is_concrete - 1
    similarity = {
        "vba": expit(1.5 * signal + rng.normal(size=len(captions)) * 0.7),
        "sba": expit(0.3 * signal + rng.normal(size=len(captions)) * 0.7),
    }
    rating = np.clip(np.round(1.5 + signal + rng.normal(size=len(captions)) * 0.4), 0, 3)
    ids = [f"{i:032x}" for i in range(len(captions))]
    plant(ctx.store, "teachers/distillation_sample", pl.DataFrame({"sample_id": ids, "caption": captions}), SHARD)
    labelled = pl.DataFrame({"caption": captions, "rating": rating}).head(100)
    for teacher, values in similarity.items():
        frame = pl.DataFrame({"sample_id": ids, "value": values, "open_similarity": values})
        plant(ctx.store, f"teachers/{teacher}", frame, SHARD)
        beams = [[text, text.upper()[:-1], "kite"] for text in captions[:100]]
        labelled = labelled.with_columns(
            pl.Series(teacher, values[:100]),
            pl.Series(f"{teacher}_open_similarity", values[:100]),
            pl.Series(f"{teacher}_reconstructions", [found[1:] for found in beams]),
        )
    plant(ctx.store, "teachers/labelled_captions", labelled, None)
    for name in ("length_statistics", "length_dependence", "length_evidence", "labelled_scores"):
        materialise_table(ctx, tables[f"standardised/{name}"], tables=tables)
    return ctx, tables


# --- length


def warnings_check(ctx: PoolContext, tables: dict[str, Table], name: str) -> CheckResult:
    """The check of a table's own warnings."""
    result = run_table(ctx, tables[name], None, tables=tables)
    return next(check for check in result.checks if check.check.name == NO_WARNINGS)


def test_slope_is_reported_before_and_after_and_ratings_are_the_evidence(tmp_path: Path) -> None:
    ctx, tables = with_teachers(tmp_path, length_counts=True)
    dependence = ctx.store.read("standardised/length_dependence")
    slopes = {(row["teacher"], row["when"]): row["slope_per_unit"] for row in dependence.to_dicts()}
    assert slopes["vba", "before"] > 0.05
    assert abs(slopes["vba", "after"]) < slopes["vba", "before"] / 3
    evidence = ctx.store.read("standardised/length_evidence")
    labelled = ctx.store.read("teachers/labelled_captions")
    lengths = np.array([len(text.split()) for text in labelled["caption"]])
    row = {(r["signal"], r["standardisation"]): r for r in evidence.to_dicts()}
    ratings = labelled["rating"].to_numpy()
    assert row["caption length", "none"]["spearman"] == pytest.approx(spearmanr(lengths, ratings).statistic)
    assert row["vba", "none"]["pearson"] == pytest.approx(pearsonr(labelled["vba"], ratings).statistic)
    by_length, globally = (row["fused, held out", name]["pearson"] for name in ("length", "global"))
    assert globally > by_length + 0.1
    said = evidence["warning"].drop_nulls().to_list()
    assert len(said) == 1
    for part in (f"{by_length:.2f} per length", f"{globally:.2f} with one global", "standardise_by: global"):
        assert part in said[0]
    check = warnings_check(ctx, tables, "standardised/length_evidence")
    assert not check.passed
    assert not check.check.is_blocking
    assert check.evidence is not None
    assert "caption length" in check.evidence["signal"].to_list()
    assert list(check.violations.values()) == said


def test_with_the_global_alternative_no_warning_is_left(tmp_path: Path) -> None:
    ctx, tables = with_teachers(tmp_path, length_counts=True, standardise_by="global")
    assert ctx.store.read("standardised/length_statistics").height == 2
    for name in ("length_dependence", "length_evidence"):
        check = warnings_check(ctx, tables, f"standardised/{name}")
        assert check.passed, check.violations


def test_balanced_lengths_give_no_warning_and_tables_without_a_column_no_check(tmp_path: Path) -> None:
    ctx, tables = with_teachers(tmp_path)
    assert warnings_check(ctx, tables, "standardised/length_evidence").passed
    assert NO_WARNINGS not in {check.name for check in checks_of(tables["standardised/labelled_scores"])}
    checks = build_definitions(ctx.settings).resolve_asset_graph().asset_check_keys
    names = {key.name for key in checks if key.asset_key == dg.AssetKey(["mine", "standardised", "length_evidence"])}
    assert {"rows_conserved", "enough_succeeded", "no_warnings"} <= names


def test_the_sentence_says_which_standardisation_agrees_better() -> None:
    assert length_evidence(0.74, 0.48, 0.89, 244, "global") is None
    assert length_evidence(-0.02, 0.89, 0.89, 244, "length") is None
    assert "the global one agrees better" in str(length_evidence(0.74, 0.48, 0.89, 244, "length"))
    assert "per-length still agrees as well" in str(length_evidence(-0.4, 0.9, 0.8, 244, "length"))
    assert "too few ratings" in str(length_evidence(0.74, float("nan"), 0.8, 9, "length"))


def test_every_reading_of_the_standardisation_is_an_option(tmp_path: Path) -> None:
    ctx, _ = with_teachers(tmp_path, mu_logit=0.0, length_unit="characters", min_group=20)
    assert set(ctx.store.read("standardised/length_dependence")["length_unit"]) == {"characters"}
    statistics = read_statistics(ctx, "vba")
    assert all(group.n >= 20 for group in statistics.groups)
    labelled = ctx.store.read("teachers/labelled_captions")
    lengths = np.array([len(text) for text in labelled["caption"]])
    expected = standardise(labelled["vba"].to_numpy(), lengths, statistics, mu_logit=0.0)
    scores = ctx.store.read("standardised/labelled_scores")["vba"].to_numpy()
    np.testing.assert_allclose(scores, expected)
    published = standardise(labelled["vba"].to_numpy(), lengths, statistics)
    np.testing.assert_allclose(logit(published) - logit(scores), 0.5, atol=1e-9)


def test_agreement_methods_read_captions_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes methods that read captions alone"):
        with_teachers(tmp_path, agreement_methods=["clip_score"])


def test_held_out_weights_have_not_seen_their_row() -> None:
    rng = np.random.default_rng(0)
    scores, ratings = rng.uniform(size=(60, 2)), rng.integers(0, 4, 60).astype(float)
    scores[7] = np.nan
    fused = held_out_fusion(scores, ratings, np.random.default_rng(3))
    assert np.isnan(fused[7])
    assert np.isfinite(np.delete(fused, 7)).all()
    changed = ratings.copy()
    changed[11] = 3 - changed[11]
    again = held_out_fusion(scores, changed, np.random.default_rng(3))
    assert again[11] == fused[11], "its own rating must not move its score"
    assert not np.allclose(np.delete(again, [7, 11]), np.delete(fused, [7, 11]))
    with pytest.raises(ValueError, match=r"folds must be in \[2, 60\]"):
        held_out_fusion(scores, ratings, rng, folds=61)


# --- agreement


def rows_of(ctx: PoolContext) -> dict[tuple[str, str, str | None, bool], dict[str, Any]]:
    table = ctx.store.read("distilled/agreement")
    return {(r["benchmark"], r["scorer"], r["similarity"], r["standardised"]): r for r in table.to_dicts()}


@pytest.mark.slow
def test_one_table_holds_teachers_similarities_student_and_benchmarks(tmp_path: Path) -> None:
    words = [("dog", 4.9, "Noun"), ("kite", 4.8, "Noun"), ("boat", 4.7, "Noun"), ("justice", 1.4, "Noun"),
             ("hope", 1.2, "Noun"), ("run", 4.0, "Verb")]  # fmt: skip
    (tmp_path / "words.tsv").write_text(
        "word\tbigram\tconc_mean\tpos\n" + "".join(f"{word}\t0\t{value}\t{pos}\n" for word, value, pos in words)
    )
    (tmp_path / "benchmark.tsv").write_text("caption\tconcreteness\na red kite\t3\nhope\t0\na small boat\t2\n")
    ctx, tables = with_teachers(
        tmp_path,
        caption_benchmark=str(tmp_path / "benchmark.tsv"),
        word_benchmark=str(tmp_path / "words.tsv"),
        agreement_methods=["concreteness_lexicon"],
        agreement_resamples=50,
    )
    benchmark = ctx.store.read("teachers/labelled_captions").head(30).reverse()
    plant(ctx.store, "teachers/benchmark_captions", benchmark, None)
    make(ctx, tables, "fusion_weights", "targets", "icc_student", "agreement", "rated_scores")
    rows = rows_of(ctx)
    labelled = ctx.store.read("teachers/labelled_captions")
    ratings = labelled["rating"].to_numpy()

    own = rows["rated captions", "vba", "text_similarity", False]
    assert own["spearman"] == pytest.approx(spearmanr(labelled["vba"], ratings).statistic)
    assert own["kendall"] == pytest.approx(kendalltau(labelled["vba"], ratings).statistic)
    assert own["pearson_low"] < own["pearson"] < own["pearson_high"]
    pairs = labelled.select("caption", "vba_reconstructions").iter_rows()
    best = [edit_similarity(beams, [text] * 2).max() for text, beams in pairs]
    edits = rows["rated captions", "vba", "edit_similarity", False]
    assert edits["pearson"] == pytest.approx(pearsonr(best, ratings).statistic)
    assert ("rated captions", "sba", "text_similarity", False) not in rows, "asks a model; only where the option says"
    scores = ctx.store.read("standardised/labelled_scores").select(TEACHERS).to_numpy()
    fused = rows["rated captions", "fused", None, False]
    assert fused["pearson"] == pytest.approx(pearsonr(fuse(scores, read_weights(ctx)), ratings).statistic)
    assert fused["saw_ratings"]
    single = ctx.store.read("distilled/rated_scores").partition_by("benchmark", "scorer", as_dict=True)
    of_captions = single["rated captions", "fused, out of fold"]
    divisions = [held_out_fusion(scores, ratings, np.random.default_rng(seed)) for seed in range(10)]
    np.testing.assert_allclose(of_captions["score"], np.mean(divisions, axis=0))
    np.testing.assert_allclose(repeated_held_out_fusion(scores, ratings, repeats=1), divisions[0])
    np.testing.assert_array_equal(of_captions["rating"], ratings)
    saw = {scorer: part["saw_ratings"].any() for (rated, scorer), part in single.items() if rated == "rated captions"}
    assert saw == {
        "vba": False, "sba": False, "fused": True, "fused, out of fold": False, "icc": True,
        "icc, the shipped student": False, "concreteness_lexicon": False, "caption length": False,
    }  # fmt: skip
    assert ("caption benchmark", "fused, out of fold") not in single, "nothing is fitted on it"

    held_out = rows["caption benchmark", "fused", None, False]
    assert held_out["n"] == 30
    assert not held_out["saw_ratings"]
    of_words = rows["word benchmark", "icc", None, False]
    assert of_words["n"] == 5, "the verb is no part of the word benchmark"
    assert of_words["spearman"] > 0.5
    assert ("word benchmark", "vba", "text_similarity", False) not in rows
    silent = rows["word benchmark", "caption length", None, False]
    assert silent["spearman"] is None
    assert "all equal" in silent["reason"]
    without = rows["rated captions", "concreteness_lexicon", None, False]
    assert without["pearson"] is None
    assert "at least 3 complete pairs" in without["reason"], "no lexicon was given: no value, and it says so"

    table = tables["distilled/agreement"]
    assert is_up_to_date(ctx, table, tables=tables)
    (tmp_path / "words.tsv").write_text((tmp_path / "words.tsv").read_text().replace("4.9", "4.5"))
    assert not is_up_to_date(ctx, table, tables=tables)


def test_the_whole_chain_makes_it(finished_pool: FinishedPool) -> None:
    rows = rows_of(finished_pool.ctx)
    assert {scorer for _, scorer, _, _ in rows} == {"vba", "sba", "fused", "icc", "caption length"}
    assert rows["planted ratings", "vba", "text_similarity", False]["spearman"] > 0.6
    report = (finished_pool.ctx.store.folder_path("downstream/report") / "report.html").read_text()
    assert "agreement with planted ratings" in report
    assert "does length carry the signal" in report


def test_the_full_ablation_asks_the_similarity_about_every_beam(finished_pool: FinishedPool) -> None:
    from curation_assets.stages.distilled.human_agreement import _similarities

    engine: Any = finished_pool.ctx.engines(["text_similarity"])["text_similarity"]
    found = finished_pool.ctx.store.read("teachers/labelled_captions").head(4)
    from curation_assets.stages.distilled.human_agreement import _best_of_beams

    values = _best_of_beams(found["vba_reconstructions"].to_list(), found["caption"].to_list(), engine.similarity)
    np.testing.assert_allclose(values.to_numpy(), found["vba"].to_numpy(), atol=1e-5)
    assert _similarities(finished_pool.ctx, "sba") == ["edit_similarity"]


def test_the_plane_shows_every_rated_caption_and_where_the_fused_score_is_one_half() -> None:
    rng = np.random.default_rng(0)
    scores, ratings = rng.uniform(size=(30, 2)), rng.integers(0, 4, 30).astype(float)
    a, b, c = 3.0, 1.5, -2.0
    axes = plane_figure(pl.DataFrame(scores, schema=TEACHERS), ratings, (a, b, c)).axes[0]
    np.testing.assert_allclose(axes.collections[0].get_offsets(), scores)
    np.testing.assert_array_equal(axes.collections[0].get_array(), ratings)
    line = np.asarray(axes.lines[0].get_xydata())
    assert len(line) > 10
    np.testing.assert_allclose(expit(a * line[:, 0] + b * line[:, 1] + c), 0.5, atol=1e-9)
    plt.close("all")


# --- rated files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("caption\tscore\na\t1\n", "expected columns caption and rating"),
        ("caption\trating\n\t1\n", "no caption, the first is row 1"),
        ("caption\trating\na\t1\nb\ttwo\n", "a rating that is no number, the first is row 2"),
        ("caption\trating\n", "holds no rated caption"),
    ],
)
def test_bad_label_files_are_answered_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "labels.tsv").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_rated(tmp_path / "labels.tsv")


def test_a_row_without_a_rating_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text('caption\tconcreteness\na "quoted" kite\t2.5\nb\t\n')
    assert read_rated(tmp_path / "labels.tsv").rows() == [('a "quoted" kite', 2.5), ("b", None)]
