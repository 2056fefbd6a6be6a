"""Stage `object_detector`: a linear reading of the captioner's image tower predicts which object each patch shows.

The tower learned dense labels first (stage `vision`) and captions after that; only the reading is trained here.
"""

import json
from collections.abc import Sequence

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPVisionModel

from curation_assets.engines.object_detector import patch_features, read_tower
from curation_assets.world.scene import SceneSpec, object_boxes, render_scene
from curation_assets.world.shapes import OBJECTS
from lab.common import (
    HELD_OUT_SEED,
    TRAINING_SEED,
    Clock,
    Setup,
    draw_specs,
    one_cycle,
    progress,
    record,
    render,
    replaced_folder,
    to_pixels,
)

SCENES, OVERLAID, TEXT_ONLY = 4000, 500, 300  # text in a picture is no object
STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 800, 4096, 3e-2, 1e-4
THRESHOLD = 0.5


def label_scores(predicted: Sequence[Sequence[str]], specs: Sequence[SceneSpec]) -> dict[str, float]:
    """Precision and recall of the distinct labels of scenes, over all of them."""
    truth = [{name for name, _ in object_boxes(spec)} for spec in specs]
    hits = sum(len(set(labels) & present) for labels, present in zip(predicted, truth, strict=True))
    n_predicted, n_present = sum(len(set(labels)) for labels in predicted), sum(map(len, truth))
    return {"precision": hits / max(1, n_predicted), "recall": hits / max(1, n_present), "scenes_measured": len(specs)}


def _features(tower: CLIPVisionModel, views: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        rows = [patch_features(tower, to_pixels(views[i : i + 64])) for i in range(0, len(views), 64)]
    return torch.cat(rows).clone()  # (N, 64, D)


def run(setup: Setup) -> None:
    """Trains the reading and ships it; the tower stays in the captioner's folder."""
    from curation_assets.core.settings import Profile
    from curation_assets.engines import load_engine

    rng, clock = setup.start("object_detector"), Clock()
    share = min(1.0, setup.scale)
    kinds = ((SCENES // 4, 4, None), (OVERLAID, 1, "scene_text"), (TEXT_ONLY, 1, "text_only"))
    specs = [
        spec
        for count, group, kind in kinds
        for spec in draw_specs(max(4, round(count * share)), TRAINING_SEED + 7, group, kind)
    ]
    scenes = render(specs)
    tower = read_tower(setup.out / "captioner")
    features = _features(tower, scenes.views).flatten(0, 1)  # (N * 64, D)
    classes = torch.from_numpy(scenes.classes.astype(np.int64)).flatten()
    names = [None, *OBJECTS]
    reading = nn.Linear(features.shape[1], len(names))
    optimiser = torch.optim.AdamW(reading.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = setup.steps(STEPS)
    schedule = one_cycle(optimiser, steps)
    for _, _bar in progress(steps, "object_detector"):
        rows = torch.from_numpy(rng.integers(len(features), size=BATCH))
        loss = nn.functional.cross_entropy(reading(features[rows]), classes[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with replaced_folder(setup.out / "object_detector") as folder:
        state = {key: value.detach().half().contiguous() for key, value in reading.state_dict().items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        config = {"model_type": "patch_labels", "labels": names, "threshold": THRESHOLD, "tower": "../captioner"}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    held_out = draw_specs(400, HELD_OUT_SEED + 7, group=1)
    profile = Profile("training", {"object_detector": f"path:{setup.out / 'object_detector'}"}, device="cpu")
    detector = load_engine("object_detector", profile)
    images = [render_scene(spec) for spec in held_out]
    predicted = [[detection.label for detection in objects] for objects in detector.detect_objects(images)]  # type: ignore[attr-defined]
    quality = label_scores(predicted, held_out)
    recipe = {
        "scenes": len(specs), "steps": steps, "batch": BATCH, "learning_rate": LEARNING_RATE, "seed": setup.seed,
        "cpu_seconds": clock.seconds(),
    }  # fmt: skip
    record(setup, "object_detector", recipe, quality)
    print(quality)
