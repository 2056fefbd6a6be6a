"""Views and labels of drawn scenes, and scenes with one object exchanged."""

import numpy as np

from curation_assets.world.pool import plant_pool, render
from curation_assets.world.scene import COLOURS, OBJECTS, RADIUS_PX, PlacedObject, SceneSpec, draw_spec
from lab.scenes import model_view, patch_labels, swap_object


def test_views_have_one_size():
    assert {model_view(render(sample)).shape for sample in plant_pool(100, seed=5)} == {(64, 64, 3)}


def test_patch_labels_of_one_large_box():
    scene = SceneSpec("grass", "single", (PlacedObject("ball", "red", "large", 64.0, 64.0, RADIUS_PX["large"]),))
    objects, colours = patch_labels(scene)
    assert objects.shape == colours.shape == (8, 8)
    assert objects[4, 4] == 1 + list(OBJECTS).index("ball")
    assert colours[4, 4] == 1 + list(COLOURS).index("red")
    assert objects[0].sum() == 0


def test_swapping_changes_one_object_and_nothing_else():
    rng = np.random.default_rng(0)
    for seed in range(30):
        scene = draw_spec(np.random.default_rng(seed))
        swapped = swap_object(scene, rng)
        different = sum(a.name != b.name for a, b in zip(scene.objects, swapped.objects, strict=True))
        assert different == (3 if scene.arrangement == "three" else 1)
        assert [o.colour for o in scene.objects] == [o.colour for o in swapped.objects]
        assert scene.background == swapped.background
