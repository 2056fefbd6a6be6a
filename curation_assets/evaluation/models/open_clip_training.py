"""CLIP from scratch on the tars of a subset, through open_clip's own trainer, at DataComp's scales.

The trainer runs in a process of its own (`open_clip_main`); this module writes its command line, follows it, goes on
after a stop, and turns its last checkpoint into a folder that the role image_text_encoder loads.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from curation_assets.core.errors import ExpectedError
from curation_assets.core.settings import PACKAGE_ROOT
from curation_assets.evaluation.models import open_clip_main
from curation_assets.evaluation.models.open_clip_main import tars_of
from curation_assets.stores.documents import save_json, save_text
from curation_assets.stores.image_formats import TRAINING_EXTENSIONS
from curation_assets.stores.images import ImageRejected, decode_image, tar_index
from curation_assets.stores.tar_samples import key_of

PROCESS = open_clip_main.__name__
WORKERS = 4  # processes that decode images, per GPU: the trainer's default; a CPU has one
LAST_LINES = 12
#: Steps that a training of our own length warms up for: this share of all, at most the scale's own number.
WARM_UP_SHARE = 0.2
#: Variables by which the trainer would take itself for one process of several.
CLUSTER_VARIABLES = re.compile(r"(SLURM|OMPI|PMI|MPI)_|(WORLD_SIZE|RANK|LOCAL_RANK|MPI_LOCALRANKID)$")

_PROGRESS = re.compile(r"Train Epoch: (\d+) \[\s*(\d+)/(\d+) .* Loss: (\S+) ")


class TrainingFailedError(ExpectedError):
    """The trainer ended before it was done."""


@dataclass(frozen=True)
class ClipScale:
    """A fixed budget: model, samples seen and how they are learned from (formulas.md §3.5)."""

    name: str
    model: str  # of open_clip, or of `clip_models/`
    samples_seen: int  # over the whole training; DataComp: as many as the pool has
    batch_size: int  # over all devices
    learning_rate: float
    warm_up: int  # steps
    beta2: float | None = None  # of AdamW; None: the trainer's, 0.98 for a ViT
    checkpoints: int = 5  # parts of the training, after each of which a stopped one goes on
    machines: int = 1
    devices: int = 1  # GPUs per machine that the batch is meant for; 0: a CPU
    needs: str = ""  # what it takes, for people

    def steps(self, samples_seen: int | None, devices: int, machines: int = 1) -> int:
        """Steps of the optimiser: the trainer fills up each part to whole batches for each of its workers."""
        workers = WORKERS if devices else 1
        batches = math.ceil((samples_seen or self.samples_seen) // self.checkpoints / self.batch_size)
        return self.checkpoints * math.ceil(batches / workers) * workers


SCALES = {
    scale.name: scale
    for scale in (
        ClipScale("tiny", "ViT-two-layer-64", 6_400, 32, 1e-3, 20, devices=0, needs="a minute on a CPU"),
        ClipScale("debug", "ViT-B-32", 128_000, 1024, 1e-4, 500, needs="one GPU"),
        ClipScale("small", "ViT-B-32", 12_800_000, 4096, 5e-4, 500, needs="one GPU of 40 GB or more"),
        ClipScale("medium", "ViT-B-32", 128_000_000, 4096, 5e-4, 500, devices=8, needs="a machine of 8 GPUs"),
        ClipScale("large", "ViT-B-16", 1_280_000_000, 8192, 5e-4, 500, devices=8, needs="a machine of 8 GPUs or more"),
        ClipScale(
            "xlarge", "ViT-L-14", 12_800_000_000, 90_112, 1e-3, 10_000, 0.95,
            machines=64, devices=8, needs="some 64 machines of 8 GPUs",
        ),
    )
}  # fmt: skip


def get_scale(name: str) -> ClipScale:
    """The scale called `name`. Raises ValueError that lists all."""
    if name not in SCALES:
        raise ValueError(f"no scale {name!r}; expected one of {', '.join(SCALES)}")
    return SCALES[name]


def training_command(
    scale: ClipScale,
    folder: Path,
    out: Path,
    *,
    devices: int,
    machines: int = 1,
    samples_seen: int | None = None,
    seed: int = 0,
) -> list[str]:
    """What trains CLIP on the tars of `folder`: one process per device, 0 devices is the CPU. With several machines,
    FIRST_MACHINE stands for the address of the first, and the same command runs on each.

    Raises ValueError for fewer samples than one batch per checkpoint, and a batch that the devices cannot share evenly.
    """
    if devices < 0 or machines < 1 or (machines > 1 and not devices):
        raise ValueError(f"expected at least one machine, with GPUs where there are several, got {machines}, {devices}")
    processes = max(1, devices * machines)
    if scale.batch_size % processes:
        raise ValueError(
            f"the batch of {scale.batch_size:,} of scale {scale.name} cannot be shared by {processes} devices; take a "
            "number that divides it"
        )
    seen = scale.samples_seen if samples_seen is None else samples_seen
    least = scale.checkpoints * scale.batch_size
    if seen < least:
        raise ValueError(
            f"{seen:,} samples seen are fewer than one batch of {scale.batch_size:,} for each of {scale.checkpoints} "
            f"checkpoints; scale {scale.name} needs at least {least:,}"
        )
    warm_up = scale.warm_up
    if samples_seen is not None:
        warm_up = min(warm_up, round(WARM_UP_SHARE * scale.steps(seen, devices)))
    process = [
        "-m", PROCESS, str(Path(out).expanduser().absolute()),
        "--train-data", str(folder.expanduser().absolute()),
        "--dataset-type", "webdataset",
        "--dataset-resampled",  # tars are drawn with replacement
        "--train-num-samples", str(seen // scale.checkpoints),
        "--epochs", str(scale.checkpoints),
        "--model", scale.model,
        "--batch-size", str(scale.batch_size // processes),  # of one process
        "--lr", repr(scale.learning_rate),
        "--warmup", str(warm_up),
        *(("--beta2", repr(scale.beta2)) if scale.beta2 is not None else ()),
        "--precision", "amp" if devices else "fp32",
        "--device", "cuda" if devices else "cpu",
        "--workers", str(WORKERS if devices else 1),
        "--local-loss",
        "--gather-with-grad",
        "--grad-checkpointing",
        *(("--ddp-static-graph",) if processes > 1 else ()),
        "--seed", str(seed),
        "--save-frequency", "0",  # the last checkpoint is kept …
        "--save-most-recent",  # … and one of those before, replaced in one step: a stop leaves none cut off
        "--resume", "latest",
        "--log-every-n-steps", str(max(1, scale.steps(seen, devices) // scale.checkpoints // 20)),
        "--report-to", "",
    ]  # fmt: skip
    if devices * machines <= 1:
        return [sys.executable, *process]
    rendezvous = ["--standalone"]
    if machines > 1:
        rendezvous = [f"--nnodes={machines}", "--rdzv-backend=c10d", "--rdzv-endpoint=FIRST_MACHINE:29500"]
    launcher = ["torch.distributed.run", *rendezvous, f"--nproc-per-node={devices}"]
    return [sys.executable, "-m", *launcher, *process]


def train_clip(
    scale: ClipScale,
    folder: Path,
    out: Path,
    *,
    devices: int = 0,
    samples_seen: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Train CLIP from scratch on the tars of `folder` on this machine and return `out`, a folder for `path:`.

    `out`: open_clip_config.json, open_clip_model.safetensors and card.json, which states the scale, the steps and the
    loss at the end (in nats); the trainer's log stays in `out/.training`. The same call after a stop goes on from the
    last of the scale's checkpoints; when all is done it returns at once. One seed gives the same initial weights, the
    same draw of tars and order of samples; a CPU gives the same weights, too, unless the training was stopped.
    `progress` is called with the number of samples that were seen meanwhile.

    Raises ValueError as `training_command` and `check_samples`, for devices that are not there, and where `out` holds
    something else; TrainingFailedError with the trainer's last lines when it ends early or its weights are not finite.
    """
    out = Path(out).expanduser().absolute()
    command = training_command(scale, folder, out, devices=devices, samples_seen=samples_seen, seed=seed)
    seen = scale.samples_seen if samples_seen is None else samples_seen
    steps = scale.steps(seen, devices)
    plan = {
        "scale": {name: value for name, value in asdict(scale).items() if name not in ("machines", "devices", "needs")},
        "samples_seen": steps * scale.batch_size,
        "steps": steps,
        "seed": seed,
        "devices": devices,
        "tars": _digest(tars_of(folder)),
    }
    if _is_finished(out, plan):
        return out
    check_samples(folder, scale)
    if devices:
        import torch

        if torch.cuda.device_count() < devices:
            raise ValueError(f"{devices} GPUs were requested and torch sees {torch.cuda.device_count()}")
    _work(out).mkdir(parents=True, exist_ok=True)
    save_json(_work(out) / "plan.json", plan)
    _follow(command, out, progress or (lambda samples: None))
    card = {**plan, "last_loss": last_loss(_log(out))}
    save_text(out / "card.json", json.dumps(card, indent=1, sort_keys=True) + "\n")
    shutil.rmtree(_work(out) / open_clip_main.RUN / "checkpoints", ignore_errors=True)
    return out


def check_samples(folder: Path, scale: ClipScale) -> None:
    """Raise ValueError unless the tars hold one batch of samples with image and caption, and an image can be read.

    Only as many tars are opened as it takes; without this a trainer that finds nothing would read on for ever.
    """
    count = 0
    for tar in tars_of(folder):
        index = tar_index(tar)
        members: dict[str, dict[str, str]] = {}
        for name in index.members:
            if (key := key_of(name)) is not None:
                members.setdefault(key, {})[name[len(key) + 1 :].lower()] = name
        for suffixes in members.values():
            image = next((suffixes[extension] for extension in TRAINING_EXTENSIONS if extension in suffixes), None)
            if image is None or "txt" not in suffixes:
                continue
            if not count:
                try:
                    decode_image(index.read(image))
                except ImageRejected as rejection:
                    raise ValueError(f"{tar}: {image}: {rejection}; export the subset again") from rejection
            count += 1
        if count >= scale.batch_size:
            return
    raise ValueError(
        f"the tars hold {count:,} samples with image and caption, fewer than one batch of {scale.batch_size:,}; take a "
        "smaller scale or a larger subset"
    )


def _work(out: Path) -> Path:
    return Path(out).expanduser().absolute() / open_clip_main.WORK


def _digest(tars: Sequence[Path]) -> str:
    """sha256 over names and sizes of the tars: what a training is continued on."""
    lines = sorted(f"{tar.name}\t{tar.stat().st_size}" for tar in tars)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_finished(out: Path, plan: dict[str, Any]) -> bool:
    """True for a folder that this plan filled. Raises ValueError for one with other things in it."""
    for path in (out / "card.json", _work(out) / "plan.json"):
        if path.is_file():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
                other = [name for name, value in plan.items() if before.get(name) != value]
            except (ValueError, AttributeError) as error:
                raise ValueError(f"{path} is not of a training ({error}); choose a new folder") from error
            if other:
                raise ValueError(f"{out} holds a training with another {', '.join(other)}; choose a new folder")
            return path.name == "card.json"
    if out.exists() and (not out.is_dir() or any(path != _work(out) for path in out.iterdir())):
        raise ValueError(f"{out} is not empty and holds no training; choose a new folder")
    return False


def _follow(command: Sequence[str], out: Path, progress: Callable[[int], None]) -> None:
    """Run the trainer to its end and report the samples it sees. Raises TrainingFailedError with its last lines."""
    environment = {name: value for name, value in os.environ.items() if not CLUSTER_VARIABLES.match(name)}
    environment |= {open_clip_main.ENDS_WITH_STDIN: "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE_ROOT.parent), environment.get("PYTHONPATH"))))
    last_lines: deque[str] = deque(maxlen=LAST_LINES)
    done = 0
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # closed when this process ends, however it ends; the trainer then ends, too
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,  # Ctrl+C reaches this process alone, which ends the trainer with its workers
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if not line.strip():
                continue
            last_lines.append(line.rstrip()[:500])
            if match := _PROGRESS.search(line):
                part, samples, of_part = map(int, match.groups()[:3])
                progress(part * of_part + samples - done)
                done = part * of_part + samples
        status = process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    if status:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise TrainingFailedError(
            f"open_clip's trainer {how}; the same command goes on from its last checkpoint. Its log is in {_log(out)}, "
            "its last lines:\n" + "\n".join(last_lines)
        )


def _log(out: Path) -> Path:
    return _work(out) / open_clip_main.RUN / "out.log"


def last_loss(log: Path) -> float | None:
    """The loss of the last step that the trainer's log reports, in nats; None for a log without one."""
    losses = [match[4] for line in log.read_text(errors="replace").splitlines() if (match := _PROGRESS.search(line))]
    return float(losses[-1]) if losses else None
