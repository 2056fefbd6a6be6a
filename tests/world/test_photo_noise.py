"""Planted noise among photographs: the plan, the texts that stand for captions, and what is done to images."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageFilter

from curation_assets.numeric.metrics.separation import KINDS
from curation_assets.world.photo_damage import (
    DARK_LEVEL,
    STRIP_RATIO,
    TINY_PX,
    blurred,
    copied,
    darkened,
    luminance,
    strip,
    tiny,
)
from curation_assets.world.photo_noise import (
    IS_ALIGNED,
    PHOTO_MIX,
    Photo,
    counts_of,
    largest_size,
    noisy_image,
    noisy_sample_id,
    plant_photo_noise,
)
from curation_assets.world.pool import plant_evaluation_scenes
from curation_assets.world.web_texts import NoiseTexts, is_boilerplate, is_file_name, noise_texts

PHOTOS = [Photo(f"a/{i:03d}", tuple(f"caption {j} of {i}" for j in range(5))) for i in range(100)]
SCENE = plant_evaluation_scenes(1, 5)[0][0]


def test_kinds_are_known_and_shares_are_whole() -> None:
    assert set(PHOTO_MIX) - {"clean"} <= set(KINDS)
    assert set(IS_ALIGNED) == set(PHOTO_MIX)
    assert sum(PHOTO_MIX.values()) == pytest.approx(1)
    assert counts_of(7, {"clean": 0.5, "dark": 0.25, "blurred": 0.25}) == {"clean": 3, "dark": 2, "blurred": 2}
    for size in range(50):
        assert sum(counts_of(size, PHOTO_MIX).values()) == size


def test_the_plan_uses_every_photograph_once_and_copies_clean_ones() -> None:
    rows = plant_photo_noise(PHOTOS, seed=4)
    assert len(rows) == largest_size(100)
    assert Counter(row.kind for row in rows) == counts_of(len(rows), PHOTO_MIX)
    assert [row.index for row in rows] == list(range(len(rows)))
    own = [row.photo for row in rows if row.kind not in ("duplicate", "text_only")]
    assert len(own) == len(set(own)) <= 100
    assert len(own) > 97  # the largest pool leaves hardly a photograph over
    clean = {row.photo: row.caption for row in rows if row.kind == "clean"}
    for row in rows:
        if row.kind == "duplicate":
            assert row.photo in clean
            assert row.caption != clean[row.photo]
            assert row.caption_of == row.photo
        if row.kind in ("clean", "dark", "blurred", "odd_size"):
            assert row.caption_of == row.photo
            assert row.caption.endswith(f"of {int(str(row.photo)[2:])}")
        if row.kind == "text_only":
            assert row.photo is None
            assert row.scene is not None
    kinds = [row.kind for row in rows]
    assert kinds != sorted(kinds)  # the order shows nothing of the kind


def test_a_mismatched_caption_is_never_of_the_same_photograph_nor_of_its_twin() -> None:
    twins = [Photo(f"b/{i:03d}", (f"Caption 0 of {i} .", f"another of {i}")) for i in range(100)]  # share a caption
    rows = plant_photo_noise([*PHOTOS, *twins], seed=1, mix={"clean": 0.1, "mismatched": 0.9})
    mismatched = [row for row in rows if row.kind == "mismatched"]
    assert len(mismatched) == 180
    for row in mismatched:
        assert row.caption_of is not None
        assert row.photo is not None
        assert row.caption_of[2:] != row.photo[2:]


def test_a_plan_depends_on_seed_and_photographs_and_on_no_order() -> None:
    assert plant_photo_noise(PHOTOS, seed=1) == plant_photo_noise(PHOTOS[::-1], seed=1)
    assert plant_photo_noise(PHOTOS, seed=1) != plant_photo_noise(PHOTOS, seed=2)
    ids = {noisy_sample_id(seed, index) for seed in range(3) for index in range(100)}
    assert len(ids) == 300
    assert all(len(one) == 32 for one in ids)


def test_plans_that_cannot_be_made_are_refused() -> None:
    for wrong, message in (
        ({"size": 500}, "size must be between 1 and 11[0-9] for 100 photographs"),
        ({"mix": {"clean": 1, "typos": 1}}, r"unknown kinds: \['typos'\]"),
        ({"mix": {"dark": 1}}, "clean above 0"),
        ({"mix": {"clean": 1, "duplicate": 3}}, "needs a clean row to copy"),
    ):
        with pytest.raises(ValueError, match=message):
            plant_photo_noise(PHOTOS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="distinct keys"):
        plant_photo_noise([PHOTOS[0], PHOTOS[0]])
    with pytest.raises(ValueError, match=r"1 photographs have no caption or a blank one, such as 'z'"):
        plant_photo_noise([*PHOTOS, Photo("z", (" ",))])
    with pytest.raises(ValueError, match="expected photographs, got none"):
        plant_photo_noise([])
    same = [Photo(str(i), ("the same",)) for i in range(20)]
    with pytest.raises(ValueError, match="none can be mismatched"):
        plant_photo_noise(same, mix={"clean": 1, "mismatched": 1})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("DSC_0294", "file_name"),
        ("IMG 2041", "file_name"),
        ("Balloon flying over Cappadocia7.jpg", "file_name"),
        ("File:Alice with sisters.JPG", "file_name"),
        ("climbing-holidays-on-a-beach", "file_name"),
        ("A dog on a beach - stock photo", "boilerplate"),
        ("Click here to enlarge image and see more", "boilerplate"),
        ("Image result for person walking", "boilerplate"),
        ("two dogs run on the beach .", None),
        ("a well-known man", None),
        ("fresh fruit for sale in a street market", None),
        ("a photo of 3 dogs", None),
        ("stock-photo-of-a-dog.jpg", "file_name"),
    ],
)
def test_rules_for_texts_of_the_web(text: str, kind: str | None) -> None:
    assert is_file_name(text) == (kind == "file_name")
    assert is_boilerplate(text) == (kind == "boilerplate")


def test_texts_are_drawn_without_repeats_until_all_are_used() -> None:
    alt_texts = ["a dog", "b.jpg", "a.jpg", "a.jpg ", "stock photo", "stock photo " + "word " * 40]
    texts = noise_texts(alt_texts, abstract=["the meaning of it all"])
    assert texts == NoiseTexts(("the meaning of it all",), ("stock photo",), ("a.jpg", "b.jpg"))
    drawn = texts.draw("file_name", 5, np.random.default_rng(0))
    assert sorted(drawn[:2]) == sorted(drawn[2:4]) == ["a.jpg", "b.jpg"]
    own = NoiseTexts()
    assert all(is_file_name(text) for text in own.draw("file_name", 50, np.random.default_rng(0)))
    assert not any(is_file_name(text) for text in own.draw("boilerplate", 200, np.random.default_rng(0)))
    assert len(set(own.draw("abstract", 50, np.random.default_rng(0)))) > 40
    with pytest.raises(ValueError, match="got 'dark'"):
        own.draw("dark", 1, np.random.default_rng(0))


def edge_variance(image: Image.Image) -> float:
    edges = np.asarray(image.convert("L").filter(ImageFilter.FIND_EDGES), dtype=float)  # (H, W)
    return float(edges[2:-2, 2:-2].var())


@pytest.mark.parametrize("seed", range(5))
def test_damage_is_what_its_name_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dark, _ = darkened(SCENE, rng)
    assert DARK_LEVEL[0] - 1 < luminance(dark) < DARK_LEVEL[1] + 1 < luminance(SCENE)
    assert dark.size == SCENE.size
    soft, _ = blurred(SCENE, rng)
    assert edge_variance(soft) < 0.1 * edge_variance(SCENE)
    small, _ = tiny(SCENE, rng)
    assert TINY_PX[0] <= max(small.size) <= TINY_PX[1]
    narrow, _ = strip(SCENE, rng)
    assert STRIP_RATIO[0] <= max(narrow.size) / min(narrow.size) <= STRIP_RATIO[1] + 1
    copy, how, quality = copied(SCENE, rng)
    assert how in ("re-encoded", "resized", "cropped")
    assert 40 <= quality <= 75
    assert (copy.size == SCENE.size) == (how == "re-encoded" or copy.width == 128)


def test_images_that_are_small_already_stay_whole() -> None:
    dot = Image.new("RGB", (8, 1), (1, 1, 1))
    rng = np.random.default_rng(0)
    assert tiny(dot, rng)[0].size == (8, 1)
    assert darkened(dot, rng)[0].tobytes() == dot.tobytes()
    for _ in range(10):
        assert min(strip(dot, rng)[0].size) >= 1
        assert min(copied(dot, rng)[0].size) >= 1


def test_only_damaged_photographs_are_opened() -> None:
    rows = plant_photo_noise(PHOTOS, seed=2)
    opened = []

    def photograph(key: str) -> Image.Image:
        opened.append(key)
        return SCENE

    for row in rows:
        made = noisy_image(row, photograph)
        assert (made is None) == (row.kind in ("clean", "mismatched", "abstract", "boilerplate", "file_name"))
    damaged = [row.photo for row in rows if row.kind in ("dark", "blurred", "odd_size", "duplicate")]
    assert opened == damaged
