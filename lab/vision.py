"""Stage `vision`: the image tower learns what is where from the renderer's own labels.

Dense patch labels first (object and colour of each 8 x 8 patch): captions alone leave a small tower on a
plateau where it names colours and places but not shapes. The class token learns which objects, which
coloured objects and which place the scene holds, since CLIP reads that token.
"""

import numpy as np
import torch
from torch import nn

from curation_assets.world.backgrounds import BACKGROUNDS
from curation_assets.world.scene import COLOURS
from curation_assets.world.shapes import OBJECTS
from lab.architectures import WIDTH, build_vision
from lab.common import (
    HELD_OUT_SEED,
    Clock,
    Scenes,
    Setup,
    draw_specs,
    one_cycle,
    progress,
    record,
    render,
    to_pixels,
    training_scenes,
)
from lab.scenes import VIEW_PX

STEPS, BATCH, LEARNING_RATE = 1200, 64, 1.5e-3
BACKGROUND_WEIGHT = 0.15  # most patches hold no object: unweighted, "nothing here" is learned and little else


class LabelHeads(nn.Module):
    """Linear readings of the tower: per patch an object and a colour, per image sets and the place."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_object = nn.Linear(WIDTH, len(OBJECTS) + 1)
        self.patch_colour = nn.Linear(WIDTH, len(COLOURS) + 1)
        self.has_object = nn.Linear(WIDTH, len(OBJECTS))
        self.has_coloured = nn.Linear(WIDTH, len(OBJECTS) * len(COLOURS))
        self.place = nn.Linear(WIDTH, len(BACKGROUNDS))


def scene_targets(scenes: Scenes, rows: np.ndarray) -> dict[str, torch.Tensor]:
    """patch_object, patch_colour (N, 64); has_object (N, 20), has_coloured (N, 200) in {0, 1}; place (N,)."""
    names, colours, places = list(OBJECTS), list(COLOURS), list(BACKGROUNDS)
    has = np.zeros((len(rows), len(names)), np.float32)
    coloured = np.zeros((len(rows), len(names), len(colours)), np.float32)
    for i, row in enumerate(rows):
        for placed in scenes.specs[row].objects:
            has[i, names.index(placed.name)] = 1
            coloured[i, names.index(placed.name), colours.index(placed.colour)] = 1
    place = [places.index(scenes.specs[row].background or places[0]) for row in rows]
    return {
        "patch_object": torch.from_numpy(scenes.classes[rows].reshape(len(rows), -1).astype(np.int64)),
        "patch_colour": torch.from_numpy(scenes.colours[rows].reshape(len(rows), -1).astype(np.int64)),
        "has_object": torch.from_numpy(has),
        "has_coloured": torch.from_numpy(coloured.reshape(len(rows), -1)),
        "place": torch.tensor(place),
    }


def label_loss(
    heads: LabelHeads, hidden: torch.Tensor, pooled: torch.Tensor, t: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Sum of the five cross-entropies. hidden (N, 65, D) before the last norm, pooled (N, D) after it."""
    patches = nn.functional.layer_norm(hidden[:, 1:], hidden.shape[-1:])
    binary = nn.functional.binary_cross_entropy_with_logits
    entropy = nn.functional.cross_entropy
    object_weights = torch.tensor([BACKGROUND_WEIGHT] + [1.0] * len(OBJECTS))
    colour_weights = torch.tensor([BACKGROUND_WEIGHT] + [1.0] * len(COLOURS))
    return (
        entropy(heads.patch_object(patches).transpose(1, 2), t["patch_object"], object_weights)
        + 0.5 * entropy(heads.patch_colour(patches).transpose(1, 2), t["patch_colour"], colour_weights)
        + 4 * binary(heads.has_object(pooled), t["has_object"])
        + 20 * binary(heads.has_coloured(pooled), t["has_coloured"])
        + 0.2 * entropy(heads.place(pooled), t["place"])
    )


@torch.no_grad()
def measure(tower: nn.Module, heads: LabelHeads, scenes: Scenes) -> dict[str, float]:
    """Held-out accuracy: objects on patches that hold one, the top object of the class token, the place."""
    rows = np.arange(len(scenes))
    targets = scene_targets(scenes, rows)
    out = tower(to_pixels(scenes.views))
    patches = nn.functional.layer_norm(out.last_hidden_state[:, 1:], out.last_hidden_state.shape[-1:])
    guess, truth = heads.patch_object(patches).argmax(-1), targets["patch_object"]
    top = heads.has_object(out.pooler_output).argmax(-1)
    return {
        "patch_object_accuracy": float((guess == truth)[truth > 0].float().mean()),
        "top_object_is_present": float(targets["has_object"][torch.arange(len(rows)), top].mean()),
        "place_accuracy": float((heads.place(out.pooler_output).argmax(-1) == targets["place"]).float().mean()),
        "scenes_measured": len(rows),
    }


def run(setup: Setup) -> None:
    """Trains the tower and leaves it in the work folder for the captioner and CLIP."""
    rng, clock = setup.start("vision"), Clock()
    scenes = training_scenes(setup)
    held_out = render(draw_specs(400, HELD_OUT_SEED, group=1))
    tower, heads = build_vision(), LabelHeads()
    weights = [*tower.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.02, betas=(0.9, 0.98))
    steps = setup.steps(STEPS)
    schedule = one_cycle(optimiser, steps)
    for step, bar in progress(steps, "vision"):
        rows = rng.choice(len(scenes), size=BATCH, replace=False) if len(scenes) >= BATCH else np.arange(len(scenes))
        out = tower(to_pixels(scenes.views[rows]))
        loss = label_loss(heads, out.last_hidden_state, out.pooler_output, scene_targets(scenes, rows))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 99:
            bar.write(
                f"vision {step + 1} loss {loss.item():.3f} {measure(tower, heads, held_out)} cpu {clock.seconds()}"
            )
            torch.save({"tower": tower.state_dict(), "heads": heads.state_dict()}, setup.work / "vision_partial.pt")
    quality = measure(tower, heads, held_out)
    torch.save({"tower": tower.state_dict(), "heads": heads.state_dict()}, setup.work / "vision.pt")
    assert VIEW_PX == 64
    recipe = {
        "steps": steps,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "seed": setup.seed,
        "cpu_seconds": clock.seconds(),
    }
    record(setup, "vision", recipe, quality)
    print(quality)
