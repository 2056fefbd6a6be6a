"""Students that are networks: three kinds, one training loop. See `students.train_student`."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from curation_assets.engines.addresses import local_folder, resolve_address
from curation_assets.engines.batches import quiet_loading
from curation_assets.engines.networks import MeanPooledRegressor, build_mlp
from curation_assets.engines.student import outputs_of

MODEL_FILE, MLP_FILE = "model.safetensors", "mlp.safetensors"
HELD_OUT_SHARE = 0.1
WARM_UP_SHARE = 0.06  # formulas.md §1.8
WEIGHT_DECAY = 0.01
MLP_WIDTH, MLP_DROPOUT = 128, 0.1

#: (B,) rows of the captions → (B,) outputs with gradient.
Predict = Callable[[np.ndarray], torch.Tensor]


@dataclass(frozen=True)
class FitSettings:
    """How a network is trained, and for how long."""

    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    patience: int  # epochs without a better held-out loss before the training stops
    device: str


@dataclass(frozen=True)
class _Draw:
    """What the seed decides."""

    rng: np.random.Generator
    held_out: np.ndarray  # (H,) rows of the captions
    training: np.ndarray  # the other rows


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    predicted: np.ndarray  # (H,) outputs for the held-out captions, in the unit of the targets
    held_out: np.ndarray  # (H,) their rows
    recipe: dict[str, Any]
    weights: Path  # the file in which they were saved


def train_roberta(
    captions: Sequence[str], goals: np.ndarray, out_dir: Path, settings: FitSettings, backbone: str | None
) -> Fitted:
    """A RoBERTa sequence classifier with one logit: `backbone` fine-tuned, or a small new one."""
    with _seeded(len(goals), settings) as draw:
        model, tokenizer = _new_roberta(backbone)
        model.to(settings.device)
        predict = _predict_from(captions, model, tokenizer, settings.device)
        fit = _fit(model, predict, model.classifier.out_proj, goals, draw, settings, out_dir / MODEL_FILE)
    model.save_pretrained(out_dir, safe_serialization=True)
    tokenizer.save_pretrained(out_dir)
    fit.recipe["backbone"] = backbone or "new: 128 wide, 2 layers"
    return fit


def train_finetuned_minilm(
    captions: Sequence[str], goals: np.ndarray, out_dir: Path, settings: FitSettings, backbone: str
) -> Fitted:
    """A sentence encoder (BERT layout) with mean pooling and a linear head, all of it trained."""
    from safetensors.torch import save_file
    from transformers import AutoModel, AutoTokenizer

    folder = local_folder(resolve_address(backbone))
    with _seeded(len(goals), settings) as draw:
        body = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            add_pooling_layer=False,
            attn_implementation="eager",
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = MeanPooledRegressor(body).to(settings.device)
        predict = _predict_from(captions, model, tokenizer, settings.device)
        fit = _fit(model, predict, model.head, goals, draw, settings, out_dir / MODEL_FILE)
    save_file({name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}, fit.weights)
    body.config.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    fit.recipe["backbone"] = backbone
    return fit


def train_mlp(embeddings: np.ndarray, goals: np.ndarray, out_dir: Path, settings: FitSettings) -> Fitted:
    """One hidden layer on (N, D) frozen sentence embeddings."""
    from safetensors.torch import save_file

    embedded = torch.from_numpy(np.array(embeddings, dtype=np.float32))  # (N, D)
    with _seeded(len(goals), settings) as draw:
        model = build_mlp((embedded.shape[1], MLP_WIDTH, 1), "relu", (MLP_DROPOUT,)).to(settings.device)
        hidden, last = cast(torch.nn.Linear, model[0]), cast(torch.nn.Linear, model[-1])

        def predict(rows: np.ndarray) -> torch.Tensor:
            return model(embedded[rows].to(settings.device))[:, 0]

        fit = _fit(model, predict, last, goals, draw, settings, out_dir / MLP_FILE)
    weights = {
        "hidden.weight": hidden.weight,
        "hidden.bias": hidden.bias,
        "out.weight": last.weight[0],
        "out.bias": last.bias,
    }
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, fit.weights)
    fit.recipe.update(hidden_width=MLP_WIDTH, dropout=MLP_DROPOUT)
    return fit


def _predict_from(captions: Sequence[str], model: torch.nn.Module, tokenizer: Any, device: str) -> Predict:
    def predict(rows: np.ndarray) -> torch.Tensor:
        return outputs_of(model, tokenizer, [captions[row] for row in rows], device).float()

    return predict


@contextlib.contextmanager
def _seeded(count: int, settings: FitSettings) -> Iterator[_Draw]:
    """While inside, torch draws by the seed; afterwards the caller's random state is as it was."""
    quiet_loading()
    rng = np.random.default_rng(settings.seed)
    order = rng.permutation(count)
    held_out_count = max(2, round(count * HELD_OUT_SHARE))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        yield _Draw(rng, order[:held_out_count], order[held_out_count:])


def _fit(
    model: torch.nn.Module,
    predict: Predict,
    last: torch.nn.Linear,
    goals: np.ndarray,
    draw: _Draw,
    settings: FitSettings,
    weights: Path,
) -> Fitted:
    """Train with AdamW on the mean squared error, keeping the epoch with the lowest held-out loss.

    The learning rate rises in the warm-up, then falls linearly. Targets are z-scores during the
    fit, as the output starts near 0; at the end mean and sd are built into `last`, the linear layer
    that gives the output.
    """
    mean, sd = float(goals.mean()), float(goals.std())
    targets = torch.tensor((goals - mean) / sd, dtype=torch.float32)
    size, held_out = settings.batch_size, draw.held_out
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY)
    steps = settings.epochs * math.ceil(len(draw.training) / size)
    warm_up = max(1, round(WARM_UP_SHARE * steps))

    def share_of_rate(step: int) -> float:
        rising, falling = (step + 1) / warm_up, (steps - step) / max(1, steps - warm_up)
        return min(rising, max(0.0, falling))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate)

    @torch.inference_mode()
    def predict_held_out() -> torch.Tensor:
        model.eval()
        return torch.cat([predict(rows) for rows in _batches(held_out, size)]).cpu()

    best_loss, best_state, best_epoch, epoch = float("inf"), {}, 0, 0
    for epoch in range(1, settings.epochs + 1):
        model.train()
        for rows in _batches(draw.rng.permutation(draw.training), size):
            loss = torch.nn.functional.mse_loss(predict(rows), targets[rows].to(settings.device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        held_out_loss = float(torch.nn.functional.mse_loss(predict_held_out(), targets[held_out]))
        if held_out_loss < best_loss:
            best_loss, best_epoch = held_out_loss, epoch
            best_state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        elif epoch - best_epoch >= settings.patience:
            break
    model.load_state_dict(best_state)
    with torch.no_grad():
        last.weight.mul_(sd)
        last.bias.mul_(sd).add_(mean)
    recipe = {
        "learning_rate": settings.learning_rate,
        "batch_size": size,
        "epochs_allowed": settings.epochs,
        "epochs_run": epoch,
        "best_epoch": best_epoch,
        "patience": settings.patience,
        "weight_decay": WEIGHT_DECAY,
        "warm_up_share": WARM_UP_SHARE,
        "agreement": f"the {len(held_out)} captions held out, which also chose the epoch",
    }
    return Fitted(predict_held_out().double().numpy(), held_out, recipe, weights)


def _batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _new_roberta(backbone: str | None) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, RobertaConfig, RobertaForSequenceClassification

    if backbone is not None:
        folder = local_folder(resolve_address(backbone))
        model = RobertaForSequenceClassification.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            num_labels=1,
            problem_type="regression",
            attn_implementation="eager",
        )
        return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(local_folder(resolve_address("embedded:clip")), local_files_only=True)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": 130,
        "num_labels": 1,
        "problem_type": "regression",
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "attn_implementation": "eager",
    }
    return RobertaForSequenceClassification(RobertaConfig(**settings)), tokenizer
