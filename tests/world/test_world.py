"""The embedded world: same seed, same pool; the truth apart; length says nothing about concreteness."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from curation_assets.world.pool import (
    WEB_MIX,
    plant_evaluation_scenes,
    plant_labelled_captions,
    plant_pool,
    render,
    truth_rows,
)
from curation_assets.world.scene import (
    BACKGROUNDS,
    RADIUS_PX,
    PlacedObject,
    SceneSpec,
    object_boxes,
    render_scene,
)
from curation_assets.world.shapes import OBJECTS


@pytest.fixture(scope="module")
def pool():
    return plant_pool(1500, seed=5)


def test_same_seed_same_pool_and_pixels():
    first, second = plant_pool(40, seed=3), plant_pool(40, seed=3)
    assert first == second
    for a, b in zip(first, second, strict=True):
        assert render(a).tobytes() == render(b).tobytes()


def test_a_sample_depends_on_seed_and_index_alone():
    assert plant_pool(60, seed=3)[:20] == plant_pool(20, seed=3)
    different = [a.caption != b.caption for a, b in zip(plant_pool(50, 1), plant_pool(50, 2), strict=True)]
    assert np.mean(different) > 0.95


def test_every_kind_appears_in_about_its_share(pool):
    kinds = [s.kind for s in pool]
    assert set(kinds) == set(WEB_MIX)
    for kind, share in WEB_MIX.items():
        assert kinds.count(kind) / len(kinds) == pytest.approx(share / sum(WEB_MIX.values()), abs=0.04)


def test_caption_length_does_not_tell_concreteness(pool):
    rated = [s for s in pool if s.concreteness is not None]
    lengths = [len(s.caption.split()) for s in rated]
    assert abs(spearmanr(lengths, [s.concreteness for s in rated]).statistic) < 0.1
    labelled = plant_labelled_captions(244, seed=0)
    assert abs(spearmanr([len(c.split()) for c, _ in labelled], [r for _, r in labelled]).statistic) < 0.15


def test_labelled_captions_are_balanced_and_new_for_each_seed():
    labelled = plant_labelled_captions(244, seed=1)
    assert [sum(rating == level for _, rating in labelled) for level in range(4)] == [61, 61, 61, 61]
    other = {c for c, _ in plant_labelled_captions(244, seed=2)}
    assert len({c for c, _ in labelled} & other) < 12


def test_pictures_are_rgb_and_native_size_unless_odd(pool):
    for sample in pool[:300]:
        image = render(sample)
        assert image.mode == "RGB"
        assert (image.size == (128, 128)) == (sample.kind != "odd_size")


def test_text_boxes_hold_the_ink(pool):
    sample = next(s for s in pool if s.kind == "text_only")
    pixels = np.asarray(render(sample)).astype(int)
    outside = np.ones(pixels.shape[:2], bool)
    for found in sample.text_boxes:
        left, top, right, bottom = found.box
        assert pixels[top:bottom, left:right].std() > 10
        outside[max(0, top) : bottom, max(0, left) : right] = False
    assert pixels[outside].std(axis=0).max() < 1  # plain paper everywhere else


def test_only_overlay_kinds_hold_text(pool):
    for sample in pool:
        assert bool(sample.text_boxes) == (sample.kind in ("text_only", "scene_text"))


def test_truth_is_a_table_of_its_own(pool):
    rows = truth_rows(pool[:50])
    assert list(rows[0]) == ["index", "kind", "concreteness", "is_aligned", "has_overlay_text", "objects"]
    assert [r["index"] for r in rows] == list(range(50))
    assert "caption" not in rows[0]


def test_boxes_of_one_large_box():
    radius = RADIUS_PX["large"]
    scene = SceneSpec("grass", "single", (PlacedObject("ball", "red", "large", 64.0, 64.0, radius),))
    ((name, (left, top, right, bottom)),) = object_boxes(scene)
    assert name == "ball"
    assert right - left == pytest.approx(2 * 0.9 * radius, abs=3)
    assert bottom - top == pytest.approx(2 * 0.9 * radius, abs=3)


@pytest.mark.parametrize("name", OBJECTS)
def test_every_object_is_seen_on_every_background(name):
    for background in BACKGROUNDS:
        scene = SceneSpec(background, "single", (PlacedObject(name, "red", "large", 64.0, 70.0, 31.0),))
        empty = SceneSpec(background, "single", ())
        changed = np.abs(np.asarray(render_scene(scene)).astype(int) - np.asarray(render_scene(empty))).max(axis=2) > 20
        assert changed.mean() > 0.02  # the ladder is the thinnest


def test_evaluation_scenes_have_five_references():
    scenes = plant_evaluation_scenes(10, seed=0)
    assert all(len(references) == 5 for _, references in scenes)
    assert scenes[0][1] == plant_evaluation_scenes(1, seed=0)[0][1]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kinds: \\['cats'\\]"):
        plant_pool(1, 0, {"cats": 1.0})
