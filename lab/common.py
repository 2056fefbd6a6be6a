"""What all training stages share: seeds, cached scenes, encoding, fp16 saving and the manifest."""

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from curation_assets.numeric.schedule import warm_up_then_cosine
from curation_assets.world.pool import draw_scene_of_kind
from curation_assets.world.scene import SceneSpec, draw_spec, render_scene
from lab.architectures import BOS, CONTEXT, EOS, PAD
from lab.scenes import model_view, patch_labels, swap_object

GROUP = 4  # scenes of a group differ in one object only: the hard negatives of the contrastive stage
TRAINING_SEED, HELD_OUT_SEED = 20_001, 90_001


@dataclass
class Setup:
    """Where a run writes, and how much of each recipe it does (`scale` 0.01 is a smoke run)."""

    out: Path
    work: Path
    scale: float = 1.0
    threads: int = 1
    seed: int = 1234
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 10:
            raise ValueError(f"scale must be in (0, 10], got {self.scale}")
        self.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(self.threads)

    def steps(self, full: int) -> int:
        """The recipe's number of steps at this scale, at least two."""
        return max(2, round(full * self.scale))

    def start(self, stage: str) -> np.random.Generator:
        """Seeds torch and returns the stage's own generator."""
        own = int.from_bytes(hashlib.sha256(f"{self.seed}:{stage}".encode()).digest()[:4], "big")
        torch.manual_seed(own)
        return np.random.default_rng(own)


@dataclass(frozen=True)
class Scenes:
    """Specifications and their 64 x 64 views. Row GROUP * g is drawn, the next GROUP - 1 swap one object of it."""

    specs: list[SceneSpec]
    views: np.ndarray  # (N, 64, 64, 3) uint8
    classes: np.ndarray  # (N, 8, 8) uint8, 1 + object index
    colours: np.ndarray  # (N, 8, 8) uint8, 1 + colour index

    def __len__(self) -> int:
        return len(self.specs)


def _draw_group(seed: int, number: int, group: int) -> list[SceneSpec]:
    rng = np.random.default_rng([seed, number])
    scene = draw_spec(rng)
    return [scene] + [swap_object(scene, rng) for _ in range(group - 1)]


def draw_specs(groups: int, seed: int, group: int = GROUP, kind: str | None = None) -> list[SceneSpec]:
    """`groups * group` specifications; the same seed draws the same ones. With `kind`, as that planted kind does."""
    if kind is not None:
        return [draw_scene_of_kind(kind, np.random.default_rng([seed, 5, number])) for number in range(groups)]
    return [spec for number in range(groups) for spec in _draw_group(seed, number, group)]


def render(specs: list[SceneSpec]) -> Scenes:
    """Renders and labels scenes (1.3 ms each)."""
    views = np.stack([model_view(render_scene(s)) for s in tqdm(specs, desc="scenes", mininterval=5)])
    labels = [patch_labels(s) for s in specs]
    classes, colours = (np.stack([pair[k] for pair in labels]).astype(np.uint8) for k in (0, 1))
    return Scenes(specs, views, classes, colours)


def training_scenes(setup: Setup, kind: str | None = None) -> Scenes:
    """The training scenes, rendered once per work folder: 10,000 groups, or 3,000 scenes with overlay text."""
    path = setup.work / f"scenes_{kind or 'groups'}.npz"
    count = max(64, round((10_000 if kind is None else 3_000) * min(1.0, setup.scale)))
    specs = draw_specs(count, TRAINING_SEED, GROUP if kind is None else 1, kind)
    if not path.exists():
        made = render(specs)
        temporary = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(temporary, views=made.views, classes=made.classes, colours=made.colours)
        os.replace(temporary, path)
    with np.load(path, allow_pickle=False) as arrays:
        return Scenes(specs, arrays["views"], arrays["classes"], arrays["colours"])


def to_pixels(views: np.ndarray) -> torch.Tensor:
    """(N, 64, 64, 3) uint8 -> (N, 3, 64, 64) float32 in [-1, 1], as the saved image processors do."""
    return torch.from_numpy(views).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0).contiguous()


def load_tokenizer(setup: Setup) -> PreTrainedTokenizerFast:
    """The shared tokenizer of this run."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(setup.out / "clip")
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def encode(
    tokenizer: PreTrainedTokenizerFast, texts: list[str], to_context: bool = False, max_length: int = CONTEXT
) -> torch.Tensor:
    """(N, T) int64: BOS ... EOS, padded to the longest text or to the whole context, cut at `max_length`."""
    rows = [[*ids[: max_length - 1], EOS] for ids in _raw_ids(tokenizer, texts)]
    width = max_length if to_context else max(len(r) for r in rows)
    return torch.tensor([r + [PAD] * (width - len(r)) for r in rows])


def _raw_ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    return [[BOS, *e.ids] for e in encodings]


def by_length(rows: list[list[int]], batch: int) -> list[list[list[int]]]:
    """Cuts rows into batches of similar length: padding to the longest row otherwise doubles the cost."""
    ordered = sorted(rows, key=len)
    return [ordered[i : i + batch] for i in range(0, len(ordered), batch)]


def one_cycle(optimiser: torch.optim.Optimizer, steps: int, warm_up: float = 0.05) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear warm-up, then a cosine down to 2 % of the learning rate."""

    rise = max(1, round(steps * warm_up))
    return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_up_then_cosine(step, steps, rise, floor=0.02))


def progress(steps: int, name: str) -> Iterator[tuple[int, tqdm]]:
    """Yields (step, bar)."""
    with tqdm(total=steps, desc=name, mininterval=5) as bar:
        for step in range(steps):
            yield step, bar
            bar.update()


def run_or_refuse(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None], arguments: Sequence[str] | None
) -> None:
    """Call `run` with the parsed arguments. A message and status 2 for input that cannot be trained on."""
    given = parser.parse_args(arguments)
    try:
        run(given)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """A folder to fill; its files then replace those of `target` one by one, each atomically."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    for source in sorted(p for p in temporary.rglob("*") if p.is_file()):
        destination = target / source.relative_to(temporary)
        destination.parent.mkdir(parents=True, exist_ok=True)
        source.chmod(0o644)  # safetensors writes 0o600
        os.replace(source, destination)
    shutil.rmtree(temporary)


def to_half(folder: Path) -> None:
    """Rewrites the safetensors of a saved model as fp16, while its config states float32: loaders upcast."""
    for path in folder.rglob("*.safetensors"):
        tensors = {k: v.half() if v.is_floating_point() else v for k, v in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    for path in folder.rglob("config.json"):
        settings = json.loads(path.read_text())
        settings.pop("_name_or_path", None)
        for nested in (settings, *(v for v in settings.values() if isinstance(v, dict) and "model_type" in v)):
            if "model_type" in nested:  # a tower loaded by itself reads its own dtype
                nested["dtype"] = "float32"
        path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


class Clock:
    """CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._start = time.process_time()

    def seconds(self) -> float:
        return round(time.process_time() - self._start, 1)


def record(setup: Setup, model: str, recipe: dict[str, Any], quality: dict[str, Any]) -> None:
    """Writes how a model was made; `manifest.py` gathers these notes and the hashes of the files."""
    note = {"recipe": recipe, "quality": quality}
    (setup.work / f"note_{model}.json").write_text(json.dumps(note, indent=2))
