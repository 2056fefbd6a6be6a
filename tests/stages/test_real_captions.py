"""A pool of real captions distils a student without labels: teachers by retrieval, weights that ship."""

from pathlib import Path

import polars as pl
import pytest

import curation_assets as ca
from curation_assets.core.settings import load_profile, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import read_weights
from curation_assets.flow.graph import tables_of
from curation_assets.operations.pieces import pieces_of
from curation_assets.stages.distilled.tables import shipped_weights

SUBJECTS = (
    "a brown dog",
    "two women",
    "a red bus",
    "an old boat",
    "the best idea",
    "our company values",
    "a bowl of soup",
)
PLACES = ("on a beach", "in the street", "at night", "for you", "on a wooden table", "2019")
CAPTIONS = [f"{subject} {place}" for subject in SUBJECTS for place in PLACES]


def captions_pool(home: Path, **options: object) -> PoolContext:
    home.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"caption": CAPTIONS}).write_csv(home / "captions.csv")
    ca.add_pool("texts", home / "captions.csv", home=home, distil=True, **options)
    return PoolContext.open(load_settings(home), "texts")


def test_nothing_rests_on_planted_ratings(tmp_path: Path) -> None:
    ctx = captions_pool(tmp_path)
    assert ctx.pool.profile == "photos", "the scene models know drawn scenes only"
    assert ctx.ratings is None
    assert [method.name for method in ctx.methods("teachers")] == ["sba_linear", "vba"]
    tables = tables_of(ctx)
    rated = {"teachers/labelled_captions", "standardised/labelled_scores", "standardised/length_evidence"}
    assert not rated & tables.keys()
    assert "distilled/agreement" not in tables, "nothing is rated"
    assert ctx.profile.address("student") == "embedded:icc_student"


def test_a_pool_that_names_its_own_student_gets_it(tmp_path: Path) -> None:
    ctx = captions_pool(tmp_path, roles={"student": "pool:icc_student"})
    assert ctx.profile.address("student") == "pool:icc_student"


def test_weights_ship_for_the_models_that_they_were_fitted_with() -> None:
    photos = load_profile("photos")
    weights = shipped_weights(("vba", "sba_linear"), photos)
    assert weights.names == ("vba", "sba_linear")
    assert min(weights.weights) > 0
    with pytest.raises(ValueError, match=r"no fusion weights ship for the teachers vba, sba with .*option labels"):
        shipped_weights(("vba", "sba"), load_profile("embedded"))


@pytest.mark.parametrize(
    ("options", "is_required"), [({}, False), ({"fuse_on": "student"}, True), ({"profile": "embedded"}, True)]
)
def test_missing_labels_are_named_before_a_run(tmp_path: Path, options: dict[str, str], is_required: bool) -> None:
    ctx = captions_pool(tmp_path, **options)
    labels = next(piece for piece in pieces_of(ctx, tables_of(ctx)) if piece.name == "option labels")
    assert (labels.state, labels.is_required) == ("missing", is_required)
    assert ("no fusion weights ship" in labels.advice) == is_required
    assert "curate annotate sample, rate" in labels.advice


def test_an_unknown_teacher_is_named(tmp_path: Path) -> None:
    ctx = captions_pool(tmp_path, teachers=["vba", "sba_lienar"])
    with pytest.raises(ValueError, match=r"option teachers has no teacher 'sba_lienar'; did you mean 'sba_linear'"):
        ctx.methods("teachers")


@pytest.mark.slow
def test_the_chain_runs_from_teachers_to_the_report(tmp_path: Path) -> None:
    ctx = captions_pool(tmp_path, distillation_size=100, min_group=4)
    ca.open_pool("texts", home=tmp_path).run(progress=False)
    weights = read_weights(ctx)
    assert weights == shipped_weights(("vba", "sba_linear"), ctx.profile)
    vba = ctx.store.scan("teachers/vba").collect()
    assert vba["reason"].null_count() == vba.height == len(CAPTIONS)
    assert set(vba["reconstructions"].list.len()) == {5}
    targets = ctx.store.scan("distilled/targets").collect()
    assert targets["value"].is_between(0, 1).all()
    concrete, abstract = (
        targets.filter(pl.col("caption").str.starts_with(subject))["value"].mean()
        for subject in ("a brown dog", "our company values")
    )
    assert concrete > abstract  # type: ignore[operator]
    page = (ctx.store.root / "downstream" / "report" / "report.html").read_text(encoding="utf-8")
    assert "nobody rated captions of this pool" in page
    assert "human rating" not in page
