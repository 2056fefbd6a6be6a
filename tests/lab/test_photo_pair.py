"""Training photo_pair on anybody's pairs: from tars or a table to a folder that a profile names."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image, ImageDraw
from rich.console import Console

from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.photo_pair import PhotoPairHead
from lab import photo_pair as command
from lab.photo_pair_fit import PairFeatures, Recipe, figures, fit, reduction
from lab.photo_pairs_read import captions_in, read_photos
from tests.support.tars import encoded, tar_of

COLOURS = ("red", "green", "blue", "yellow", "black", "white")
SHAPES = ("circle", "square", "triangle", "stripe")


def drawn(colour: str, shape: str) -> Image.Image:
    image = Image.new("RGB", (80, 60), "grey")
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((15, 5, 65, 55), fill=colour)
    elif shape == "square":
        draw.rectangle((15, 5, 65, 55), fill=colour)
    elif shape == "triangle":
        draw.polygon([(40, 2), (10, 58), (70, 58)], fill=colour)
    else:
        draw.rectangle((0, 20, 80, 40), fill=colour)
    return image


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """24 drawn images with two captions each, a blank caption and a repeated one."""
    rows = []
    for colour in COLOURS:
        for shape in SHAPES:
            name = f"{colour}_{shape}.png"
            drawn(colour, shape).save(tmp_path / name)
            rows += [
                (name, f"a {colour} {shape}"),
                (name, f"a {shape} that is {colour}"),
                (name, f"a {colour} {shape}"),
            ]
    rows.append(("red_circle.png", "  "))
    pl.DataFrame(rows, schema=["image", "caption"], orient="row").write_csv(tmp_path / "pairs.csv")
    return tmp_path / "pairs.csv"


# --- what is read


def test_a_table_gives_photos_with_all_their_captions(table: Path) -> None:
    photos = read_photos(table)
    assert len(photos) == 24
    assert [photo.name for photo in photos] == sorted(photo.name for photo in photos)
    by_name = {photo.name: photo for photo in photos}
    assert by_name["red_circle.png"].captions == ("a red circle", "a circle that is red")
    assert by_name["blue_stripe.png"].load().size == (80, 60)


def test_photos_of_a_group_stay_in_one_fold(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pl.read_csv(table).with_columns(group=pl.col("image").str.split("_").list.first())
    rows.write_csv(table.parent / "grouped.csv")
    photos = read_photos(table.parent / "grouped.csv")
    assert {photo.name.partition("_")[0]: photo.group for photo in photos} == {name: name for name in COLOURS}
    trained_on: list[np.ndarray] = []

    def fitted(pairs: PairFeatures, *further: object) -> dict[str, torch.Tensor]:
        trained_on.append(pairs.probabilities[:, 0].astype(int))
        return {}

    monkeypatch.setattr(command, "_fit", fitted)
    monkeypatch.setattr(command, "scores_of", lambda tensors, pairs: np.eye(len(pairs)))
    n = len(photos)
    numbered = PairFeatures(np.zeros((1, n, 2)), np.arange(n)[:, None], np.zeros((n, 3)), np.arange(n + 1))
    command.cross_validated(photos, numbered, np.zeros((0, 3)), Recipe(), 0, 2, None, reporter_for(Console()))
    for rows_of_fold in trained_on:
        groups = {photos[row].group for row in rows_of_fold}
        assert groups.isdisjoint({photo.group for row, photo in enumerate(photos) if row not in rows_of_fold})
    assert sum(len(rows_of_fold) for rows_of_fold in trained_on) == n


def test_tars_give_the_pairs_that_have_both(tmp_path: Path) -> None:
    picture = encoded(drawn("red", "circle"), "PNG")
    tar_of(
        tmp_path / "00000.tar",
        {"a.png": picture, "a.txt": b" a red circle ", "b.png": picture, "c.txt": b"no image", "d.png": picture,
         "d.txt": b" "},
    )  # fmt: skip
    for path in (tmp_path, tmp_path / "00000.tar"):
        (photo,) = read_photos(path)
        assert (photo.name, photo.captions) == ("00000.tar:a.png", ("a red circle",))
        assert photo.load().size == (80, 60)


def test_bad_input_is_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.csv").write_text("picture,text\na.png,a\n")
    (tmp_path / "blank.csv").write_text('image,caption\na.png,""\n')
    (tmp_path / "few.csv").write_text("image,caption\na.png,a dog\n")
    for path, message in (
        (tmp_path / "nowhere", "no file or folder"),
        (tmp_path / "empty", "expected .tar files"),
        (tmp_path / "words.csv", "expected the columns image and caption, got ['picture', 'text']"),
        (tmp_path / "blank.csv", "expected images with captions, got none"),
        (tmp_path / "few.csv", "expected at least 20 photos with captions, got 1"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(["--pairs", str(path), "--out", str(tmp_path / "out")])
        assert ended.value.code == 2
        printed = " ".join(capsys.readouterr().err.split())
        assert message in printed, printed


def test_captions_of_files_are_distinct(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog\n\n a dog \na cat\n")
    pl.DataFrame({"caption": ["a cat", "a\nbird", None]}).write_parquet(tmp_path / "b.parquet")
    assert captions_in([tmp_path / "a.txt", tmp_path / "b.parquet"]) == ["a dog", "a cat", "a bird"]
    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="expected a column caption"):
        captions_in([tmp_path / "c.parquet"])


# --- the whole command


@pytest.mark.slow
def test_the_command_trains_folders_that_a_profile_loads(tmp_path: Path, table: Path) -> None:
    bank = tmp_path / "bank.txt"
    bank.write_text("".join(f"a picture of a {colour} {shape}\n" for colour in COLOURS for shape in SHAPES))
    out, red = tmp_path / "out", tmp_path / "red.csv"
    pl.read_csv(table).filter(pl.col("image").str.starts_with("red")).write_csv(red)
    arguments = [
        sys.executable, "-m", "lab", "photo_pair", "--pairs", str(table), "--out", str(out),
        "--bank", str(bank), "--more-captions-in", str(bank), "--folds", "2", "--heads", "2", "--epochs", "30",
        "--crops", "0", "--threads", "1", "--photo-bank", str(red),
    ]  # fmt: skip
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((out / "nearest_photo" / "card.json").read_text())["photos"] == 4
    assert "24 photos, 48 captions" in ran.stdout
    assert "cross-validated: {'folds': 2" in ran.stdout
    card = json.loads((out / "photo_pair" / "card.json").read_text())
    assert (card["photos"], card["captions"], card["further_captions"]) == (24, 48, 24)
    assert card["cross_validated"]["folds"] == 2
    roles = {"image_text_encoder": f"path:{out}/photo_pair", "captioner": f"path:{out}/nearest_captions"}
    profile = Profile("own", roles, device="cpu")
    encoder: Any = load_engine("image_text_encoder", profile)
    photos = read_photos(table)
    images = [photo.load() for photo in photos]
    found = figures(encoder.embed_images(images) @ encoder.embed_texts([photo.captions[0] for photo in photos]).T)
    assert found.auc > 0.9  # it saw them: this says that what was trained is what answers
    captioner: Any = load_engine("captioner", profile)
    assert set(captioner.sample_captions(images[:1], [0], 2)[0]) <= set(bank.read_text().splitlines())
    drawer: Any = load_engine("text_to_image", Profile("own", {"text_to_image": f"path:{out}/nearest_photo"}))
    vectors = encoder.embed_images([photo.load() for photo in photos if photo.name.startswith("red")])
    (found_photo,) = drawer.generate_images(["a red circle"], [0])
    assert max(vectors @ found_photo.vector) > 0.99


# --- the parts


def synthetic(count: int, seed: int) -> PairFeatures:
    """Photos and captions that show the same 5 hidden numbers; two captions of each photo."""
    rng = np.random.default_rng(seed)
    to_image, to_text = (np.random.default_rng(9).normal(size=(5, width)) for width in (40, 384))
    hidden = rng.normal(size=(count, 5))
    images = np.stack([hidden @ to_image + 0.3 * rng.normal(size=(count, 40)) for _ in range(2)])
    sentences = np.repeat(hidden, 2, axis=0) @ to_text + 0.3 * rng.normal(size=(2 * count, 384))
    return PairFeatures(
        images.astype(np.float16),
        np.full((count, 1000), 1e-3, dtype=np.float16),
        sentences / np.linalg.norm(sentences, axis=1, keepdims=True),
        np.arange(count + 1) * 2,
    )


@pytest.mark.slow
def test_fit_learns_and_repeats() -> None:
    recipe = Recipe(heads=2, reduced=16, hidden=32, width=16, epochs=20, batch=64, conse_weight=0.0)
    classes = np.random.default_rng(1).normal(size=(1000, 384))
    updates: list[int] = []
    before = torch.random.get_rng_state()
    tensors = fit(synthetic(300, 0), classes, recipe, seed=3, advance=updates.append)
    assert torch.equal(torch.random.get_rng_state(), before)  # no global randomness
    assert sum(updates) == 20 * (300 // 64)
    again = fit(synthetic(300, 0), classes, recipe, seed=3)
    other = fit(synthetic(300, 0), classes, recipe, seed=4)
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert not torch.equal(tensors["image.out.weight"], other["image.out.weight"])
    unseen = synthetic(100, 1)
    assert figures(command.scores_of(tensors, unseen)).auc > 0.95
    assert PhotoPairHead(tensors).width == 2 * 16 + 384


def test_rows_of_features_keep_their_captions() -> None:
    pairs = synthetic(10, 0)
    part = pairs[np.array([7, 2])]
    assert len(part) == 2
    np.testing.assert_array_equal(part.first_captions(), pairs.sentences[[14, 4]])
    np.testing.assert_array_equal(part.images, pairs.images[:, [7, 2]])
    np.testing.assert_array_equal(part.starts, [0, 2, 4])


@pytest.mark.parametrize("count", [30, 200])  # fewer and more photos than features
def test_reduction_keeps_the_largest_components(count: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, 3)) @ rng.normal(size=(3, 60)) + 5 + 0.01 * rng.normal(size=(count, 60))
    weight, bias = reduction(features, 3)
    reduced = features @ weight.T + bias
    assert reduced.shape == (count, 3)
    np.testing.assert_allclose(reduced.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose((reduced**2).mean(), 1, atol=1e-3)
    correlations = np.corrcoef(reduced.T) - np.eye(3)
    assert np.abs(correlations).max() < 1e-3
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    back = reduced @ np.linalg.lstsq(reduced, z, rcond=None)[0]
    assert ((z - back) ** 2).mean() < 0.01


def test_figures_by_hand() -> None:
    """Own scores .9, .2, .5 against six others: 6 + 2.5 + 4 of 18 comparisons are won (a tie counts half)."""
    found = figures(np.array([[0.9, 0.1, 0.2], [0.3, 0.2, 0.6], [0.5, 0.0, 0.5]]), ks=(1, 2))
    assert found.auc == pytest.approx((6 + 2.5 + 4.5) / 18)
    assert found.recall == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}


def test_views_begin_with_what_the_engine_sees() -> None:
    image = drawn("red", "stripe")
    views = command.views_of([image], 3, np.random.default_rng(0))
    assert len(views) == 6
    assert views[0][0] is image
    assert views[1][0].size == (60, 60)
    for (view,) in views[3:]:
        assert 0.5 < view.width * view.height / (80 * 60) <= 1.0
        assert abs(view.width / view.height - 80 / 60) < 0.1


def test_recipes_are_checked() -> None:
    with pytest.raises(ValueError, match="sizes and counts must be at least 1"):
        Recipe(heads=0)
    with pytest.raises(ValueError, match="conse_weight must be in"):
        Recipe(conse_weight=1.0)
