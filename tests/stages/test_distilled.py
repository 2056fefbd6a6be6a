"""Distillation by both orders of the paper, with every kind of student, through the flow's own tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from curation_assets.annotation.drawing import draw_for_rating
from curation_assets.flow.declared import read_weights
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.numeric.fusion import fit_logistic_fusion
from tests.support.teacher_scores import CAPTIONS, SHARD, make, with_teacher_scores

IN_TWO_STEPS = ("student_vba", "student_sba", "student_scores", "labelled_student_scores", "fusion_weights", "targets")


@pytest.mark.parametrize(
    ("kind", "fit"),
    [
        ("minilm_ridge", {}),
        ("minilm_mlp", {"epochs": 60, "patience": 10}),
        pytest.param(
            "minilm_finetuned", {"epochs": 1, "learning_rate": 2e-4, "batch_size": 16}, marks=pytest.mark.slow
        ),
        ("roberta", {"epochs": 2, "batch_size": 16}),
    ],
)
def test_in_two_steps_with_every_kind_of_student(tmp_path: Path, kind: str, fit: dict[str, Any]) -> None:
    ctx, tables = with_teacher_scores(tmp_path, fuse_on="student", student_kind=kind, student_fit=fit)
    make(ctx, tables, *IN_TWO_STEPS, "icc_student")
    scores = ctx.store.read("distilled/student_scores", SHARD)
    assert scores.columns == ["sample_id", "caption", "vba", "sba"]
    teachers = ctx.store.read("standardised/teacher_scores", SHARD)
    assert not np.allclose(scores["vba"], teachers["vba"])
    labelled = ctx.store.read("distilled/labelled_student_scores")
    assert labelled["caption"].to_list() == CAPTIONS[::2]
    fitted = fit_logistic_fusion(labelled.select("vba", "sba").to_numpy(), labelled["rating"].to_numpy())
    weights = read_weights(ctx)
    np.testing.assert_allclose(weights.weights, fitted.weights, rtol=1e-6)
    targets = ctx.store.read("distilled/targets", SHARD)["value"]
    expected = expit(scores.select("vba", "sba").to_numpy() @ np.array(weights.weights) + weights.intercept)
    np.testing.assert_allclose(targets, expected, atol=1e-9)
    icc = ctx.engines(["student"])["student"].score_captions(["a red kite on a table", "the future of justice"])
    assert np.isfinite(icc).all()
    if kind != "roberta":  # two epochs from nothing on 64 captions promise no order
        assert icc[0] > icc[1]
    drawn = draw_for_rating(ctx, count=10, cells=3)
    assert set(drawn["vba"]) <= set(scores["vba"]), "captions to rate are drawn on the students' scores (appendix A.2)"


def test_in_one_step_nothing_of_the_two_step_order_exists(tmp_path: Path) -> None:
    _, tables = with_teacher_scores(tmp_path)
    assert not {f"distilled/{name}" for name in IN_TWO_STEPS[:4]} & set(tables)
    assert tables["distilled/fusion_weights"].inputs == ("standardised/labelled_scores",)
    assert tables["distilled/targets"].inputs[0] == "standardised/teacher_scores"


def test_new_labels_make_new_weights(tmp_path: Path) -> None:
    ctx, tables = with_teacher_scores(tmp_path, fuse_on="student")
    make(ctx, tables, *IN_TWO_STEPS)
    table = tables["distilled/labelled_student_scores"]
    assert is_up_to_date(ctx, table, tables=tables)
    labels = tmp_path / "labels.tsv"
    labels.write_text(labels.read_text().replace("\t0.0\n", "\t3.0\n"))
    assert not is_up_to_date(ctx, table, tables=tables)
    assert not is_up_to_date(ctx, tables["teachers/labelled_captions"], tables=tables)
