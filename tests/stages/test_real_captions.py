"""A pool of real captions distils a student without labels: teachers by retrieval, weights that ship."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.torch import load_file

import curation_assets as ca
from curation_assets.core.settings import load_profile, load_settings
from curation_assets.core.table_names import LABELLED_CAPTIONS, LABELLED_SCORES, PHOTO_BANK, RATED_SCORES
from curation_assets.engines.nearest_photo import from_stored
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import read_weights
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.operations.pieces import pieces_of
from curation_assets.operations.takedown import begin_takedown, finish_takedown, pending_takedown
from curation_assets.stages.distilled.tables import shipped_weights
from curation_assets.stores.denylist import add_to_denylist
from tests.support.lineage_pools import caption_of, jpeg, write_tar

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
    assert ("icc is by embedded:icc_student" in labels.advice) != is_required
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
    assert "icc is by the student embedded:icc_student, not by the one distilled here" in page
    assert "human rating" not in page


def write_images(home: Path, shard: int, numbers: list[int]) -> None:
    """A tar of pairs; sample 1 has an empty caption, sample 2 a broken image."""
    rows = [
        (f"{n:06d}", f"http://host.example/{n}.jpg", " " if n == 1 else caption_of(n), b"no" if n == 2 else jpeg(n))
        for n in numbers
    ]
    write_tar(home / "tars" / f"{shard:06d}.tar", rows)


def pool_with_a_bank(home: Path, **options: Any) -> PoolContext:
    write_images(home, 0, [0, 1, 2, 3, 4])
    write_images(home, 1, [5, 6, 7])
    ca.add_pool(
        "pairs", home / "tars", home=home, profile="photos", distil=True, photo_bank="pool", methods=(), **options
    )
    return PoolContext.open(load_settings(home), "pairs")


def bank_of(ctx: PoolContext) -> tuple[list[str], np.ndarray]:
    folder = ctx.store.folder_path(PHOTO_BANK)
    vectors = from_stored(load_file(folder / "photos.safetensors"))
    assert json.loads((folder / "card.json").read_text())["photos"] == len(vectors)
    return (folder / "sample_ids.txt").read_text().splitlines(), vectors


@pytest.mark.slow
def test_vba_finds_its_photograph_among_the_pools_own_images(tmp_path: Path) -> None:
    ctx = pool_with_a_bank(tmp_path)
    run_with_upstream(ctx, "teachers/vba")
    ids, vectors = bank_of(ctx)
    kept = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    rows = {row["sample_id"]: row for row in kept.iter_rows(named=True)}
    assert set(ids) == set(rows)
    assert len(ids) == 6
    load, encoder = ctx.image_loader(), ctx.engines(["image_text_encoder"])["image_text_encoder"]
    own = encoder.embed_images([load(rows[sample_id]) for sample_id in ids])
    assert (own * vectors).sum(axis=1).min() > 0.999
    manifest = ctx.store.manifest("teachers/vba", ctx.shards()[0])
    assert manifest is not None
    assert "pool:photo_bank" in {model["address"] for model in manifest.models}
    assert PHOTO_BANK in {read.asset for read in manifest.inputs}
    vba = ctx.store.scan("teachers/vba").collect()
    assert vba["reason"].null_count() == vba.height == 6
    labels = next(piece for piece in pieces_of(ctx, tables_of(ctx)) if piece.name == "option labels")
    assert labels.is_required, "the weights that ship were fitted with the shipped bank"

    write_images(tmp_path, 2, [8, 9])
    ctx = PoolContext.open(load_settings(tmp_path), "pairs")
    run_with_upstream(ctx, "teachers/vba")
    assert bank_of(ctx)[0] == ids, "frozen: a late shard is no reason"
    assert ctx.store.scan("teachers/vba").collect().height == 8

    ctx.store.remove(PHOTO_BANK)  # as `curate refit --fits` does
    run_with_upstream(ctx, PHOTO_BANK)
    assert len(bank_of(ctx)[0]) == 8
    tables = tables_of(ctx)
    assert not is_up_to_date(ctx, tables["teachers/vba"], ctx.shards()[1], tables=tables), "another bank, other values"


@pytest.mark.slow
def test_a_sample_that_is_taken_down_leaves_the_bank(tmp_path: Path) -> None:
    ctx = pool_with_a_bank(tmp_path)
    run_with_upstream(ctx, "teachers/vba")
    ids, vectors = bank_of(ctx)
    samples = {
        row["caption"]: row["sample_id"] for row in ctx.store.scan("raw/samples").collect().iter_rows(named=True)
    }

    def take_down(sample_id: str) -> dict[str, Any]:
        add_to_denylist(tmp_path, [("uid", sample_id)])
        tables = tables_of(ctx)
        begun = begin_takedown(ctx, tables)
        assert begun is not None
        assert (PHOTO_BANK in begun.holding) == (not ctx.store.folder_path(PHOTO_BANK).is_dir())
        run_with_upstream(ctx, "teachers/vba")
        return finish_takedown(ctx, tables, begun)[0]

    certificate = take_down(samples[caption_of(2)])  # its image is broken: not in the bank
    assert {PHOTO_BANK, "distilled/icc_student"} <= set(certificate["fits_kept"])
    assert bank_of(ctx)[0] == ids
    certificate = take_down(samples[caption_of(3)])
    assert not {PHOTO_BANK, "distilled/icc_student"} & set(certificate["fits_kept"]), "fitted again, by the next run"
    assert "filtered/clip_cut" in certificate["fits_kept"], "rests on no bank"
    left, of_left = bank_of(ctx)
    assert left == [sample_id for sample_id in ids if sample_id != samples[caption_of(3)]]
    assert (of_left @ vectors[ids.index(samples[caption_of(3)])]).max() < 0.999
    assert len(list((ctx.store.root / "teachers").glob(".photo_bank.version-*"))) == 1, "no earlier version stays"
    changed = {one["path"].split("/")[-1] for one in certificate["artefacts"]}
    assert "photos.safetensors" in changed

    add_to_denylist(tmp_path, [("uid", samples[caption_of(5)])])
    run_with_upstream(ctx, "teachers/vba")  # a run between `takedown add` and `takedown apply`
    assert ctx.store.scan("raw/samples").filter(pl.col("reason") == "takedown").collect().height >= 2
    begin_takedown(ctx, tables_of(ctx))
    run_with_upstream(ctx, "teachers/vba")
    assert samples[caption_of(5)] not in bank_of(ctx)[0]


@pytest.mark.slow
@pytest.mark.parametrize("is_inside", [True, False], ids=["file in the home", "file elsewhere"])
def test_a_rated_caption_that_is_taken_down_leaves_the_tables(tmp_path: Path, is_inside: bool) -> None:
    home, taken = tmp_path / "home", CAPTIONS[3]
    home.mkdir()
    labels = (home if is_inside else tmp_path) / "labels.tsv"
    rated = [(caption, (n * 7) % 4) for n, caption in enumerate(CAPTIONS[:30])]
    labels.write_text("caption\trating\n" + "".join(f"{caption}\t{rating}\n" for caption, rating in rated))
    ctx = captions_pool(home, labels=str(labels), teachers=["sba_linear"], min_group=4)
    run_with_upstream(ctx, RATED_SCORES)
    samples = ctx.store.scan("raw/samples").filter(pl.col("caption") == taken).collect()
    quoting = (LABELLED_CAPTIONS, LABELLED_SCORES, RATED_SCORES)

    def quoted() -> list[str]:
        return [name for name in quoting if taken in ctx.store.read(name)["caption"]]

    assert quoted() == list(quoting)
    add_to_denylist(home, [("uid", samples["sample_id"][0])])
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    assert ctx.store.manifest(LABELLED_CAPTIONS) is None
    run_with_upstream(ctx, RATED_SCORES)
    certificate = finish_takedown(ctx, tables, begun)[0]
    named = {one["path"] for one in certificate["left"] if one["what"] == taken}
    if is_inside:
        assert quoted() == []
        assert named == set()
        assert ctx.store.read(LABELLED_CAPTIONS).height == 29
        assert pending_takedown(home, "texts") is None
    else:
        tables_left = {f"work/texts/{name}/data.parquet" for name in quoting}
        assert named == {str(labels), *tables_left}, "its owner's, who may take it out, and what is made of it"
        labels.write_text(labels.read_text().replace(f"{taken}\t{rated[3][1]}\n", ""))
        begun = begin_takedown(ctx, tables)
        assert begun is not None, "the next run goes on"
        run_with_upstream(ctx, RATED_SCORES)
        assert finish_takedown(ctx, tables, begun)[0]["left"] == []
        assert quoted() == []


def test_a_pool_without_images_or_with_a_writing_captioner_has_no_bank(tmp_path: Path) -> None:
    ctx = captions_pool(tmp_path / "texts", photo_bank="pool")
    with pytest.raises(ValueError, match=r"'texts' has captions only, and photo_bank: pool takes images"):
        tables_of(ctx)
    other = pool_with_a_bank(tmp_path / "pairs", roles={"beam_captioner": "embedded:captioner"})
    with pytest.raises(ValueError, match=r"takes a bank of captions as beam_captioner.*got embedded:captioner"):
        run_with_upstream(other, PHOTO_BANK)
