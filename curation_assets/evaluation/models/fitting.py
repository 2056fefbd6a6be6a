"""The one training loop of the downstream models: a fixed budget of samples seen, resumable to the bit."""

import contextlib
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from curation_assets.evaluation.models.muon import Muon, hidden_matrices
from curation_assets.numeric.schedule import warm_up_then_cosine
from curation_assets.stores.documents import save_tensors

CHECKPOINT_SECONDS = 60.0
MAX_GRADIENT_NORM = 1.0
MOMENTS = ("exp_avg", "exp_avg_sq", "step", "momentum")  # AdamW's and Muon's state of one parameter

#: Called with the number of steps (or of images) done.
Progress = Callable[[int], None]
#: Positions of one batch → its loss, a scalar with gradients.
Loss = Callable[[Sequence[int]], torch.Tensor]


class FitOptions(TypedDict, total=False):
    """The options of `fit` that do not depend on the model."""

    samples_seen: Required[int]
    seed: Required[int]
    checkpoint: Path | None
    checkpoint_seconds: float
    device: str
    progress: Progress | None


def fit(
    modules: Mapping[str, nn.Module | nn.Parameter],
    loss_of: Loss,
    *,
    count: int,
    batch_size: int,
    samples_seen: int,
    seed: int,
    learning_rate: float,
    muon_ratio: float | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.05,
    warm_up_share: float = 0.05,
    made_from: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[float]:
    """Train `modules` in place for samples_seen // batch_size steps; returns the loss of every step.

    AdamW, gradients clipped to norm 1, linear warm-up, cosine to zero. With a `muon_ratio` the weights of linear layers
    take Muon's steps instead (muon.py), at so many times the learning rate. The batches are those of
    `epoch_batches`, so they depend on count, batch_size and seed alone; torch is seeded anew before every step.
    `checkpoint`: a .safetensors file with the weights, the optimizers' moments, the losses and, in its header, what it
    was made from; written every `checkpoint_seconds` and at the end. A killed training goes on from it, on a CPU to the
    same bits. One that was made from anything else (these arguments, the shapes, `made_from`) is ignored and replaced.
    It is the caller's to delete. `made_from`: facts that JSON can hold, such as a digest of the data.
    Raises ValueError for a budget or a training set below one batch, and for a loss that is not finite.
    """
    steps = steps_of(samples_seen, batch_size)
    batches = epoch_batches(count, batch_size, steps, seed)
    parameters = _trained_parameters(modules)
    matrices = [] if muon_ratio is None else hidden_matrices(modules)
    taken = set(matrices)
    rest = [parameter for parameter in parameters.values() if parameter not in taken]
    optimizers: dict[torch.optim.Optimizer, float] = {  # → its highest learning rate
        torch.optim.AdamW(rest, fused=True, betas=betas, weight_decay=weight_decay): learning_rate
    }
    if muon_ratio is not None and matrices:
        optimizers[Muon(matrices, lr=learning_rate, weight_decay=weight_decay)] = muon_ratio * learning_rate
    settings: dict[str, Any] = {"betas": tuple(betas), "weight_decay": weight_decay}
    settings |= {} if muon_ratio is None else {"muon_ratio": muon_ratio}  # checkpoints of other trainings stay theirs
    shapes = [f"{name} {tuple(parameter.shape)}" for name, parameter in parameters.items()]
    facts = {
        "count": count, "batch_size": batch_size, "steps": steps, "seed": seed, "learning_rate": learning_rate,
        "warm_up_share": warm_up_share, "shapes": texts_digest(shapes), **settings, **(made_from or {}),
    }  # fmt: skip
    state = _State(modules, parameters, list(optimizers), json.dumps(facts, sort_keys=True), checkpoint, device)
    losses = state.restore()
    if losses and progress is not None:
        progress(len(losses))
    warm_up = max(1, round(warm_up_share * steps))
    saved_at = time.monotonic()
    # the caller's random state comes back afterwards
    with torch.random.fork_rng([] if device == "cpu" else [torch.device(device)]):
        for step, batch in enumerate(itertools.islice(batches, len(losses), None), start=len(losses)):
            # dropout of a step is the same after a resume
            torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]))
            for optimizer, highest in optimizers.items():
                for group in optimizer.param_groups:
                    group["lr"] = highest * warm_up_then_cosine(step, steps, warm_up)
            loss = loss_of(batch)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise ValueError(
                    f"the loss is {value} at step {step + 1} of {steps}; lower learning_rate, got {learning_rate}"
                )
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters.values(), MAX_GRADIENT_NORM)
            for optimizer in optimizers:
                optimizer.step()
            losses.append(value)
            if step + 1 == steps or time.monotonic() - saved_at >= checkpoint_seconds:
                state.save(losses)
                saved_at = time.monotonic()
            if progress is not None:
                progress(step + 1)
    return losses


def steps_of(samples_seen: int, batch_size: int) -> int:
    """Whole batches in the budget. Raises ValueError for less than one."""
    if batch_size < 1 or samples_seen < batch_size:
        raise ValueError(
            f"expected a budget of at least one batch ({batch_size} samples), got samples_seen={samples_seen}; "
            "raise samples_seen or lower batch_size"
        )
    return samples_seen // batch_size


def check_count(count: int, batch_size: int) -> None:
    """Raises ValueError for a training set below one batch."""
    if count < batch_size:
        raise ValueError(f"expected at least one batch of {batch_size} samples, got {count}; lower batch_size")


def epoch_batches(count: int, batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """`steps` full batches of positions in range(count): every epoch is a fresh permutation, its remainder
    skipped.

    A pure function of its arguments. Raises ValueError when there are fewer samples than one batch.
    """
    check_count(count, batch_size)
    rng = np.random.default_rng([seed, count])
    per_epoch = count // batch_size
    order = rng.permutation(count)
    for step in range(steps):
        position = step % per_epoch
        if position == 0 and step > 0:
            order = rng.permutation(count)
        yield order[position * batch_size : (position + 1) * batch_size].tolist()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator inside a block, where models are built; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


def texts_digest(texts: Sequence[str]) -> str:
    """sha256 over texts in their order, to name the data of a checkpoint."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


class _State:
    """Everything that a step changes, in one file: weights and step number never part."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module | nn.Parameter],
        parameters: Mapping[str, nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        made_from: str,
        path: Path | None,
        device: str,
    ) -> None:
        self.parameters = parameters
        self.buffers = {  # of batch norm, for one
            f"{name}.{inner}": buffer
            for name, module in modules.items()
            if isinstance(module, nn.Module)
            for inner, buffer in module.named_buffers()
        }
        self.moments = {  # parameter → its optimizer's state of all its parameters
            parameter: optimizer.state
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self.made_from = made_from
        self.path = path
        self.device = device

    def save(self, losses: list[float]) -> None:
        """Replaces the file in one step; nothing without a path."""
        if self.path is None:
            return
        tensors = {f"weights.{name}": tensor for name, tensor in {**self.parameters, **self.buffers}.items()}
        for name, parameter in self.parameters.items():
            # a parameter that no loss has reached has no moments
            own = self.moments[parameter].get(parameter, {})
            tensors |= {f"{moment}.{name}": own[moment] for moment in MOMENTS if moment in own}
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        saved = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_tensors(self.path, saved, {"made_from": self.made_from})

    @torch.no_grad()
    def restore(self) -> list[float]:
        """Losses so far; an empty list, and nothing changed, where the file is absent, unreadable or of another
        training.
        """
        if self.path is None or not self.path.is_file():
            return []
        try:
            with safe_open(self.path, framework="pt") as stream:
                if (stream.metadata() or {}).get("made_from") != self.made_from:
                    return []
                saved = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - no mapping
        except SafetensorError:
            return []
        for name, tensor in {**self.parameters, **self.buffers}.items():
            tensor.copy_(saved[f"weights.{name}"])
        for name, parameter in self.parameters.items():
            own = {moment: saved[f"{moment}.{name}"] for moment in MOMENTS if f"{moment}.{name}" in saved}
            if own:
                self.moments[parameter][parameter] = {moment: tensor.to(self.device) for moment, tensor in own.items()}
        return saved["losses"].tolist()


def _trained_parameters(modules: Mapping[str, nn.Module | nn.Parameter]) -> dict[str, nn.Parameter]:
    """Name → parameter that takes gradients, shared ones once, in the order of `modules`."""
    parameters: dict[str, nn.Parameter] = {}
    for name, part in modules.items():
        named = [("", part)] if isinstance(part, nn.Parameter) else part.named_parameters()
        for inner, parameter in named:
            if parameter.requires_grad:
                parameters[f"{name}.{inner}" if inner else name] = parameter
    return parameters
