"""What models are trained on of scenes: views, labels of patches, scenes with one object exchanged."""

from dataclasses import replace

import numpy as np
from PIL import Image

from curation_assets.world.scene import COLOURS, NATIVE_PX, OBJECTS, SceneSpec, object_mask

VIEW_PX = 64
PATCH_PX = 8  # in the 64 x 64 model view, so 16 native pixels


def patch_labels(spec: SceneSpec, min_cover: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """Dense labels of the 64 x 64 view: (8, 8) object class and (8, 8) colour, both 0 for background.

    A patch of 16 x 16 native pixels belongs to the object covering most of it, if that is at least
    `min_cover` of its area. Classes are 1 + index in OBJECTS, colours 1 + index in COLOURS.
    """
    side = NATIVE_PX // (VIEW_PX // PATCH_PX)  # 16
    tiles = object_mask(spec).reshape(VIEW_PX // PATCH_PX, side, VIEW_PX // PATCH_PX, side)
    cover = np.stack([(tiles == n).mean(axis=(1, 3)) for n in range(1, len(spec.objects) + 1)] or [np.zeros((8, 8))])
    owner = np.where(cover.max(axis=0) >= min_cover, cover.argmax(axis=0) + 1, 0)  # (8, 8)
    names, colours = list(OBJECTS), list(COLOURS)
    class_of = np.array([0] + [1 + names.index(o.name) for o in spec.objects])
    colour_of = np.array([0] + [1 + colours.index(o.colour) for o in spec.objects])
    return class_of[owner], colour_of[owner]


def model_view(image: Image.Image) -> np.ndarray:
    """(64, 64, 3) uint8: the shortest side brought to 64 (bicubic, antialiased), then the centre."""
    scale = VIEW_PX / min(image.size)
    width, height = (max(VIEW_PX, round(s * scale)) for s in image.size)
    view = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top, left = (height - VIEW_PX) // 2, (width - VIEW_PX) // 2
    return view[top : top + VIEW_PX, left : left + VIEW_PX]


def swap_object(spec: SceneSpec, rng: np.random.Generator) -> SceneSpec:
    """The same scene with one object replaced by another of the same colour, size and place."""
    present = {o.name for o in spec.objects}
    others = [n for n in OBJECTS if n not in present]
    new = others[int(rng.integers(len(others)))]
    if spec.arrangement == "three":
        return replace(spec, objects=tuple(replace(o, name=new) for o in spec.objects))
    position = int(rng.integers(len(spec.objects)))
    changed = list(spec.objects)
    changed[position] = replace(changed[position], name=new)
    return replace(spec, objects=tuple(changed))
