"""The miniature downstream: what a training set is worth to a captioner and a dual encoder trained on it.

Both are small, fresh and seeded, and read frozen CLIP patch features that are computed once per pool. The
budget (samples seen), the initialisation and the seed of the order are the same for every training set, so that only
the data differ.
Shapes: N samples, T patches, D feature width, M captions.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoTokenizer,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    GPT2Config,
    GPT2LMHeadModel,
)

from curation_assets.engines.addresses import local_folder, resolve_address
from curation_assets.engines.batches import chunks, unique_texts
from curation_assets.evaluation.models.fitting import (
    FitOptions,
    check_count,
    fit,
    seeded,
    texts_digest,
)

WIDTH = 128
LAYERS = 2
HEADS = 4
MAX_TOKENS = 40  # longest caption trained on, BOS and EOS included; longer ones are cut
CAPTIONER_MUON_RATIO, DUAL_ENCODER_MUON_RATIO = 2.0, 4.0  # with their learning rates: docs/decisions/0051
LENGTH_PARTS = 4  # of a dual encoder's batch: all padded to the longest caption, two of five tokens were padding


@dataclass(eq=False, repr=False)
class TrainedCaptioner:
    """A captioner trained on one training set."""

    decoder: "CaptionDecoder"
    tokenizer: Any
    device: str
    losses: list[float]  # cross-entropy in nats per token, one per step

    @torch.inference_mode()
    def generate(self, features: np.ndarray, *, beams: int = 1, batch_size: int = 128) -> list[str]:
        """(N, T, D) features → N captions; greedy for beams=1 (the demo), beam search above (ICC §5.2 uses 5)."""
        captions: list[str] = []
        for batch in chunks(range(len(features)), batch_size):
            states = _tensor(features, batch, self.device)
            sequences = self.decoder.generate(states, beams)
            captions += [text.strip() for text in self.tokenizer.batch_decode(sequences, skip_special_tokens=True)]
        return captions


@dataclass(eq=False, repr=False)
class TrainedDualEncoder:
    """A dual encoder trained on one training set."""

    image_tower: "AttentionPool"
    text_tower: Any
    tokenizer: Any
    device: str
    losses: list[float]  # symmetric InfoNCE in nats, one per step

    @torch.inference_mode()
    def embed_images(self, features: np.ndarray, *, batch_size: int = 256) -> np.ndarray:
        """(N, T, D) features → (N, 128) float32, unit length."""
        rows = [
            self.image_tower(_tensor(features, batch, self.device)).cpu()
            for batch in chunks(range(len(features)), batch_size)
        ]
        return torch.cat(rows).numpy() if rows else np.zeros((0, WIDTH), dtype=np.float32)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str], *, batch_size: int = 256) -> np.ndarray:
        """(M,) strings → (M, 128) float32, unit length."""
        distinct, inverse = unique_texts(texts)
        encoded = encode_captions(self.tokenizer, distinct)
        rows = [
            _embed_texts(self.text_tower, pad_captions([encoded[i] for i in batch], self.tokenizer), self.device).cpu()
            for batch in chunks(range(len(distinct)), batch_size)
        ]
        return torch.cat(rows).numpy()[inverse] if rows else np.zeros((0, WIDTH), dtype=np.float32)


def train_captioner(
    features: np.ndarray,
    captions: Sequence[str],
    *,
    batch_size: int = 48,
    learning_rate: float = 1e-2,
    **options: Unpack[FitOptions],
) -> TrainedCaptioner:
    """Train a fresh two-layer decoder on (N, T, D) features and N captions for exactly `samples_seen` // `batch_size`
    steps.

    Muon for the weights of linear layers, AdamW for the rest; 5 % warm-up, cosine to zero; epochs without replacement;
    `options` as in `fit`. Same arguments, same weights (one thread). Raises ValueError for unequal lengths, for less
    than one full batch of samples or of budget.
    """
    _check(features, captions, batch_size)
    tokenizer, device = _tokenizer(), options.get("device", "cpu")
    encoded = encode_captions(tokenizer, captions)
    decoder = untrained_captioner(features.shape[2], tokenizer, options["seed"]).to(device).train()

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        ids = pad_captions([encoded[i] for i in batch], tokenizer).to(device)  # (B, L)
        return decoder(_tensor(features, batch, device), ids)

    losses = fit(
        {"decoder": decoder},
        loss_of,
        count=len(captions),
        batch_size=batch_size,
        learning_rate=learning_rate,
        muon_ratio=CAPTIONER_MUON_RATIO,
        made_from=None if options.get("checkpoint") is None else _data_facts(features, captions),
        **options,
    )
    return TrainedCaptioner(decoder.eval(), tokenizer, device, losses)


def train_dual_encoder(
    features: np.ndarray,
    captions: Sequence[str],
    *,
    batch_size: int = 96,
    learning_rate: float = 3e-3,
    **options: Unpack[FitOptions],
) -> TrainedDualEncoder:
    """Train a fresh text tower and attention pool on (N, T, D) features and N captions for exactly
    `samples_seen` // `batch_size` steps.

    Symmetric InfoNCE inside the batch, logit scale learned from 1 / 0.07 (Radford et al. 2021 §2.3). The
    other facts are those of `train_captioner`.
    """
    _check(features, captions, batch_size)
    tokenizer, device = _tokenizer(), options.get("device", "cpu")
    encoded = encode_captions(tokenizer, captions)
    untrained = untrained_dual_encoder(features.shape[2], tokenizer, options["seed"])
    image_tower, text_tower = (tower.to(device).train() for tower in untrained)
    log_scale = new_log_scale(device)

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        parts = parts_of_like_length(batch, encoded)
        images = image_tower(_tensor(features, list(itertools.chain(*parts)), device))  # (B, W)
        texts = torch.cat(
            [_embed_texts(text_tower, pad_captions([encoded[i] for i in part], tokenizer), device) for part in parts]
        )  # (B, W)
        return contrastive_loss(images, texts, log_scale)

    losses = fit(
        {"image_tower": image_tower, "text_tower": text_tower, "log_scale": log_scale},
        loss_of,
        count=len(captions),
        batch_size=batch_size,
        learning_rate=learning_rate,
        muon_ratio=DUAL_ENCODER_MUON_RATIO,
        made_from=None if options.get("checkpoint") is None else _data_facts(features, captions),
        **options,
    )
    return TrainedDualEncoder(image_tower.eval(), text_tower.eval(), tokenizer, device, losses)


def untrained_captioner(feature_width: int, tokenizer: Any, seed: int) -> "CaptionDecoder":
    """What every training of `seed` starts from, whatever it is trained on."""
    with seeded(seed):
        return CaptionDecoder(feature_width, tokenizer)


def untrained_dual_encoder(feature_width: int, tokenizer: Any, seed: int) -> tuple["AttentionPool", Any]:
    """Image and text tower that every training of `seed` starts from, whatever it is trained on."""
    with seeded(seed):
        return AttentionPool(feature_width), _new_text_tower(tokenizer)


def new_log_scale(device: str) -> nn.Parameter:
    """The learned logarithm of the logit scale, at first log(1 / 0.07) (Radford et al. 2021 §2.5)."""
    return nn.Parameter(torch.tensor(np.log(1 / 0.07), dtype=torch.float32, device=device))


def contrastive_loss(images: torch.Tensor, texts: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
    """Symmetric InfoNCE of (B, W) and (B, W) unit vectors, row i of one belonging to row i of the other; nats.

    The logit scale is at most 100 (Radford et al. 2021 §2.5).
    """
    logits = log_scale.exp().clamp(max=100) * images @ texts.T  # (B, B)
    right = torch.arange(len(images), device=images.device)
    cross_entropy = nn.functional.cross_entropy
    return (cross_entropy(logits, right) + cross_entropy(logits.T, right)) / 2


class CaptionDecoder(nn.Module):
    """GPT-2 of two layers with cross-attention to patch features."""

    def __init__(self, feature_width: int, tokenizer: Any) -> None:
        super().__init__()
        self.bos, self.eos, self.pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
        self.reader = nn.Sequential(nn.LayerNorm(feature_width), nn.Linear(feature_width, WIDTH))
        settings: dict[str, Any] = {
            "vocab_size": len(tokenizer),
            "n_positions": MAX_TOKENS,
            "n_embd": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_inner": 2 * WIDTH,
            "activation_function": "gelu_pytorch_tanh",  # one fused kernel; "gelu_new" is six
            "add_cross_attention": True,
            "is_decoder": True,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": self.bos,
            "eos_token_id": self.eos,
            "pad_token_id": self.pad,
            "attn_implementation": "sdpa",  # a training step takes a sixteenth less than with "eager"
        }
        self.language_model: Any = GPT2LMHeadModel(GPT2Config(**settings))

    def forward(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """(B, T, D), (B, L) ids padded on the right → mean cross-entropy per predicted token, nats."""
        inputs, targets = ids[:, :-1], ids[:, 1:]
        # Padding stands on the right of a causal model: no real token sees it, and it is not predicted.
        is_real = targets != self.pad  # (B, L - 1)
        hidden = self.language_model.transformer(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            encoder_hidden_states=self.reader(states),
            use_cache=False,
        ).last_hidden_state  # (B, L - 1, W)
        # The vocabulary is half of the cost: compute it for real tokens only.
        return nn.functional.cross_entropy(self.language_model.lm_head(hidden[is_real]), targets[is_real])

    def generate(self, states: torch.Tensor, beams: int) -> torch.Tensor:
        """(B, T, D) → (B, L) token ids, BOS first."""
        read = self.reader(states)  # (B, T, W)
        bos = torch.full((len(states), 1), self.bos, device=states.device)
        return self.language_model.generate(
            input_ids=bos,
            attention_mask=torch.ones_like(bos),
            encoder_hidden_states=read,
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_TOKENS - 1,
            eos_token_id=self.eos,
            pad_token_id=self.pad,
        )


class AttentionPool(nn.Module):
    """Patch features → one vector: each head looks at the patches once, an MLP refines, a projection ends.

    With one fixed query per head the key projection folds into the query, and values are projected after
    pooling, so the cost does not grow with the patches.
    """

    def __init__(self, feature_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(feature_width)
        self.queries = nn.Parameter(torch.randn(HEADS, feature_width) * feature_width**-0.5)  # (H, D)
        self.values = nn.Linear(HEADS * feature_width, WIDTH)
        self.refine = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, D) → (B, W), unit length."""
        read = self.norm(states)
        weights = torch.softmax(read @ self.queries.T, dim=1)  # (B, T, H), sums to 1 over the patches
        pooled = self.values((weights.transpose(1, 2) @ read).flatten(1))  # (B, H, D) → (B, W)
        return nn.functional.normalize(self.project(pooled + self.refine(pooled)), dim=-1)


def encode_captions(tokenizer: Any, captions: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    """BOS, caption, EOS as token ids, cut to `max_tokens` with EOS kept."""
    if not captions:
        return []
    ids = tokenizer(list(captions), add_special_tokens=False, truncation=True, max_length=max_tokens - 2).input_ids
    return [[tokenizer.bos_token_id, *row, tokenizer.eos_token_id] for row in ids]


def parts_of_like_length(batch: Sequence[int], encoded: Sequence[Sequence[int]]) -> list[list[int]]:
    """The positions of a batch by the length of their captions, in LENGTH_PARTS parts at most, of equal size but the
    last.

    `encoded`: token ids of every caption.
    """
    ordered = sorted(batch, key=lambda position: len(encoded[position]))
    size = -(-len(ordered) // LENGTH_PARTS)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def pad_captions(rows: Sequence[list[int]], tokenizer: Any) -> torch.Tensor:
    """(B,) lists of ids → (B, L) int64, padded on the right to the longest."""
    longest = max(map(len, rows))
    return torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])


def _new_text_tower(tokenizer: Any) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": MAX_TOKENS,
        "projection_dim": WIDTH,
        "hidden_act": "gelu",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "attn_implementation": "sdpa",
    }
    return CLIPTextModelWithProjection(CLIPTextConfig(**settings))


def _embed_texts(tower: CLIPTextModelWithProjection, ids: torch.Tensor, device: str) -> torch.Tensor:
    """(B, L) ids → (B, W), unit length.

    The tower is causal and read at EOS, so padding after it has no effect.
    """
    return nn.functional.normalize(tower(input_ids=ids.to(device)).text_embeds, dim=-1)


def _tensor(features: np.ndarray, positions: Sequence[int], device: str) -> torch.Tensor:
    return torch.from_numpy(features[np.asarray(positions)]).to(device=device, dtype=torch.float32)  # (B, T, D)


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(local_folder(resolve_address("embedded:clip")), local_files_only=True)


def _data_facts(features: np.ndarray, captions: Sequence[str]) -> dict[str, str]:
    """Digests of what a checkpoint was trained on."""
    digest = hashlib.sha256()
    for row in features:  # row by row: a memory map larger than memory passes through
        digest.update(np.ascontiguousarray(row).data)
    return {"captions": texts_digest(captions), "features": digest.hexdigest()}


def _check(features: np.ndarray, captions: Sequence[str], batch_size: int) -> None:
    if features.ndim != 3 or len(features) != len(captions):
        raise ValueError(
            f"expected features (N, T, D) and N captions, got shape {features.shape} and {len(captions)} captions"
        )
    check_count(len(captions), batch_size)
