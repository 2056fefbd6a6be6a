"""Train the bridge of the semantic teacher: one linear layer from CLIP's text feature into a frozen language model.

The recipe of the paper's released training (formulas.md §1.4), for any CLIP and any causal language model, on captions
that
the user gives. What comes out is the folder that the hub profile's setting `bridge` names.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curation_assets.core.settings import Profile
from curation_assets.engines.addresses import local_folder, resolve_address
from curation_assets.engines.identities import digest_files, folder_files
from curation_assets.numeric.schedule import warm_up_then_cosine
from curation_assets.stores.atomic import check_new
from curation_assets.stores.documents import save_tensors, save_text

IGNORED = -100  # label of a position without loss
PREFIX_LENGTH = 1  # one placeholder carries the caption's meaning
STATE_FILE = "state.safetensors"


@dataclass(frozen=True)
class BridgeRecipe:
    """Hyper-parameters; the defaults are the published ones (formulas.md §1.4)."""

    learning_rate: float = 2e-3
    warm_up_share: float = 0.03
    weight_decay: float = 0.0
    epochs: int = 2
    batch_size: int = 32
    accumulation: int = 4  # effective batch 128
    max_length: int = 2048  # tokens of BOS, placeholder, caption and newline
    max_gradient_norm: float = 1.0
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_length < PREFIX_LENGTH + 3:
            raise ValueError(f"max_length must hold BOS, placeholder, a token and a newline, got {self.max_length}")
        if not self.learning_rate > 0 or not 0 <= self.warm_up_share < 1:
            raise ValueError(
                f"expected learning_rate > 0 and warm_up_share in [0, 1), got {self.learning_rate} and "
                f"{self.warm_up_share}"
            )


@dataclass(frozen=True)
class BridgeCard:
    """What a bridge is and how it came to be; saved beside its weights as card.json."""

    language_model: str
    text_encoder: str
    made_from: str  # sha256 over recipe, captions and both models' weights
    recipe: dict[str, Any]
    captions: int
    steps: int
    first_loss: float  # mean cross-entropy in nats per token over the first tenth of the steps
    last_loss: float  # and over the last tenth
    weights_sha256: str


def steps_of(captions: Sequence[str], recipe: BridgeRecipe) -> int:
    """Steps of the optimiser over all epochs; blank captions are not trained on."""
    used = sum(bool(text.strip()) for text in captions)
    return recipe.epochs * -(-used // (recipe.batch_size * recipe.accumulation))


def frozen_models(profile: Profile) -> tuple[str, str]:
    """Addresses of the language model and of the CLIP text encoder that a profile's semantic_decoder is made of.

    Raises ValueError where the profile names no text encoder.
    """
    text_encoder = profile.generation.get("semantic_decoder", {}).get("text_encoder")
    if text_encoder is None:
        raise ValueError(
            f"profile {profile.name!r} names no text encoder; add "
            "generation: {semantic_decoder: {text_encoder: ADDRESS}}"
        )
    return profile.address("semantic_decoder"), text_encoder


def learning_rate_at(step: int, steps: int, recipe: BridgeRecipe) -> float:
    """Linear warm-up, then a cosine to 0. `step` counts from 0."""
    warm_up = round(recipe.warm_up_share * steps)
    return recipe.learning_rate * warm_up_then_cosine(step, steps, warm_up)


def train_bridge(
    captions: Sequence[str],
    out_dir: Path,
    *,
    language_model: str,
    text_encoder: str,
    recipe: BridgeRecipe | None = None,
    device: str = "cpu",
    gradient_checkpointing: bool | None = None,
    save_every: int = 200,
    progress: Callable[[int], None] | None = None,
) -> BridgeCard:
    """Fit the bridge on (N,) captions and write bridge.safetensors, bridge.json and card.json to `out_dir`.

    Sequence: BOS, the placeholder (CLIP's projected text feature, not normalised, through the bridge), the caption, a
    newline as end marker; cross-entropy per token without the first two positions. Text tower and language model are
    frozen. `language_model`, `text_encoder`: addresses (hub:, path:). On CUDA the language model is held in bf16 with
    gradient checkpointing, on a CPU in fp32 without.

    State is saved every `save_every` steps: the same call after a kill goes on from there and ends with the same
    weights. `progress` is called after each step. Raises ValueError for no captions, a recipe out of range, or a
    folder that holds something else.
    """
    recipe = recipe or BridgeRecipe()
    texts = [text for text in captions if text.strip()]
    if not texts:
        raise ValueError(f"a bridge needs captions, got {len(captions)} of which none has words")
    folders = [local_folder(resolve_address(address)) for address in (language_model, text_encoder)]
    made_from = _made_from(texts, folders, recipe)
    finished = _finished_card(out_dir, made_from)
    if finished is not None:
        return finished
    out_dir.mkdir(parents=True, exist_ok=True)
    training = _Training(texts, out_dir / "progress", folders, recipe, device, gradient_checkpointing, made_from)
    losses = training.run(save_every, progress or (lambda done: None))
    weights = training.save_bridge(out_dir)
    tenth = max(1, len(losses) // 10)
    card = BridgeCard(
        language_model=language_model,
        text_encoder=text_encoder,
        made_from=made_from,
        recipe=asdict(recipe),
        captions=len(texts),
        steps=len(losses),
        first_loss=float(np.mean(losses[:tenth])),
        last_loss=float(np.mean(losses[-tenth:])),
        weights_sha256=weights,
    )
    save_text(out_dir / "card.json", json.dumps(asdict(card), indent=2, sort_keys=True) + "\n")
    shutil.rmtree(out_dir / "progress", ignore_errors=True)
    return card


def _made_from(captions: Sequence[str], folders: Sequence[Path], recipe: BridgeRecipe) -> str:
    models = [digest_files(folder_files(folder)) for folder in folders]
    digest = hashlib.sha256(json.dumps([asdict(recipe), models]).encode())
    for caption in captions:
        digest.update(caption.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _finished_card(out_dir: Path, made_from: str) -> BridgeCard | None:
    path, states = out_dir / "card.json", out_dir / "progress"
    if not path.is_file():
        if not states.is_dir() or any(STATE_FILE not in state.name for state in states.iterdir()):
            check_new(out_dir, folder=True)
        return None
    try:
        card = BridgeCard(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not of a bridge ({error}); choose another folder") from error
    if card.made_from != made_from:
        raise ValueError(
            f"{out_dir} holds a bridge made from other captions, models or settings ({card.language_model}, "
            f"{card.captions} captions); choose another folder"
        )
    return card


class _Training:
    """The loop and its state: bridge, moments of AdamW, number of steps, losses so far."""

    def __init__(
        self,
        captions: list[str],
        state_dir: Path,
        folders: Sequence[Path],
        recipe: BridgeRecipe,
        device: str,
        gradient_checkpointing: bool | None,
        made_from: str,
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from curation_assets.engines.batches import quiet_loading
        from curation_assets.engines.image_text_encoder import ClipTextFeature

        quiet_loading()
        on_gpu = device != "cpu"
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = True
        self.captions, self.state_dir, self.recipe, self.device = captions, state_dir, recipe, device
        self.made_from = made_from
        language_model, text_encoder = folders
        self.tokenizer: Any = AutoTokenizer.from_pretrained(language_model, local_files_only=True)
        self.newline = self.tokenizer("\n", add_special_tokens=False).input_ids
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            language_model,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            attn_implementation="sdpa" if on_gpu else "eager",
        )
        self.model.to(device).requires_grad_(False)
        if on_gpu if gradient_checkpointing is None else gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
            self.model.train()  # the library checkpoints in this mode only; Llama has no dropout to switch on
        else:
            self.model.eval()
        self.text_feature = ClipTextFeature(text_encoder, recipe.batch_size, device)
        self.hidden_size = int(self.model.get_input_embeddings().weight.shape[1])
        width = int(self.text_feature.model.config.projection_dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.bridge = torch.nn.Linear(width, PREFIX_LENGTH * self.hidden_size)
        self.bridge.to(device)
        self.optimizer = torch.optim.AdamW(
            self.bridge.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        per_step = recipe.batch_size * recipe.accumulation
        self.steps_per_epoch = -(-len(captions) // per_step)
        self.losses: list[float] = []

    def run(self, save_every: int, progress: Callable[[int], None]) -> list[float]:
        """Train to the end from wherever the saved state stands. Returns the loss of every step."""
        if save_every < 1:
            raise ValueError(f"save_every must be at least 1, got {save_every}")
        self._restore()
        progress(len(self.losses))
        steps = self.recipe.epochs * self.steps_per_epoch
        for step in range(len(self.losses), steps):
            self.losses.append(self._step(step, steps))
            if (step + 1) % save_every == 0 or step + 1 == steps:
                self._save()
            progress(1)
        return self.losses

    def _rows(self, step: int) -> np.ndarray:
        """Captions of one step: every epoch is a permutation of its own, so a resumed run needs no history."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(len(self.captions))
        size = self.recipe.batch_size * self.recipe.accumulation
        return order[batch * size : (batch + 1) * size]

    def _step(self, step: int, steps: int) -> float:
        import torch

        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(step, steps, self.recipe)
        rows = self._rows(step)
        encoded = [self._encode(self.captions[row]) for row in rows]
        tokens = sum(len(ids) for ids in encoded)  # of the whole effective batch: every token weighs the same
        total = 0.0
        self.optimizer.zero_grad()
        for start in range(0, len(rows), self.recipe.batch_size):
            chosen = slice(start, start + self.recipe.batch_size)
            loss = self._loss([self.captions[row] for row in rows[chosen]], encoded[chosen]) / tokens
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.bridge.parameters(), self.recipe.max_gradient_norm)
        self.optimizer.step()
        return total

    def _encode(self, caption: str) -> list[int]:
        """Token ids of the caption and the newline, without special tokens."""
        ids = self.tokenizer(caption, add_special_tokens=False).input_ids
        return [*ids[: self.recipe.max_length - 1 - PREFIX_LENGTH - len(self.newline)], *self.newline]

    def _loss(self, captions: list[str], encoded: list[list[int]]) -> Any:
        """Summed cross-entropy of the caption tokens, given BOS and the bridged feature."""
        import torch

        from curation_assets.engines.batches import autocast

        longest = max(len(ids) for ids in encoded)
        ids = torch.zeros((len(encoded), longest), dtype=torch.long)  # padding: any id, it is masked
        labels = torch.full((len(encoded), longest), IGNORED)
        for row, own in enumerate(encoded):
            ids[row, : len(own)] = torch.tensor(own)
            labels[row, : len(own)] = torch.tensor(own)
        ids, labels = ids.to(self.device), labels.to(self.device)
        features = self.text_feature(captions).to(self.device)  # (B, D)
        embedding = self.model.get_input_embeddings()
        bos = torch.full((len(encoded), 1), self.tokenizer.bos_token_id, device=self.device)
        with autocast(self.device):
            prefix = self.bridge(features.clone()).view(len(encoded), PREFIX_LENGTH, -1)
            start = embedding(bos)
            embeds = torch.cat([start, prefix.to(start.dtype), embedding(ids)], dim=1)  # (B, 1 + P + T, H)
            mask = torch.cat([torch.ones_like(bos).expand(-1, 1 + PREFIX_LENGTH), (labels != IGNORED).long()], dim=1)
            logits = self.model(inputs_embeds=embeds, attention_mask=mask, use_cache=False).logits
        predicted = logits[:, PREFIX_LENGTH:-1].float()  # (B, T, V): the placeholder predicts the first token
        return torch.nn.functional.cross_entropy(
            predicted.transpose(1, 2), labels, ignore_index=IGNORED, reduction="sum"
        )

    def _save(self) -> None:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.bridge.state_dict().items()}
        for name, parameter in self.bridge.named_parameters():
            for moment in ("exp_avg", "exp_avg_sq", "step"):
                tensors[f"{name}.{moment}"] = self.optimizer.state[parameter][moment].detach().cpu().contiguous()
        facts = {"made_from": self.made_from, "losses": json.dumps(self.losses)}
        # facts inside: weights and step number never part
        save_tensors(self.state_dir / STATE_FILE, tensors, facts)

    def _restore(self) -> None:
        from safetensors import safe_open

        path = self.state_dir / STATE_FILE
        if not path.is_file():
            return
        with safe_open(path, framework="pt") as stream:
            facts = stream.metadata()
            if facts.get("made_from") != self.made_from:
                raise ValueError(
                    f"{self.state_dir} holds an unfinished training of other captions, models or settings; delete it, "
                    "or choose another folder"
                )
            self.bridge.load_state_dict({name: stream.get_tensor(name) for name in ("weight", "bias")})
            for name, parameter in self.bridge.named_parameters():
                self.optimizer.state[parameter] = {
                    "exp_avg": stream.get_tensor(f"{name}.exp_avg").to(self.device),
                    "exp_avg_sq": stream.get_tensor(f"{name}.exp_avg_sq").to(self.device),
                    "step": stream.get_tensor(f"{name}.step"),
                }
            self.losses = [float(loss) for loss in json.loads(facts["losses"])]

    def save_bridge(self, folder: Path) -> str:
        """Write what `engines.semantic_decoder.load_bridge` reads: bridge.safetensors and bridge.json. → sha256."""
        from curation_assets.stores.file_hash import file_sha256

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.bridge.state_dict().items()}
        save_tensors(folder / "bridge.safetensors", tensors)
        facts = {
            "prefix_length": PREFIX_LENGTH,
            "input_dim": self.bridge.in_features,
            "hidden_size": self.hidden_size,
        }
        save_text(folder / "bridge.json", json.dumps(facts, indent=2) + "\n")
        return file_sha256(folder / "bridge.safetensors")
