"""Reward models: cached frozen features of ranked pairs, training by Bradley–Terry, evaluation beside baselines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file as load_arrays
from torch import nn

from curation_assets.core.roles import ImageTextEncoder, PairEncoder, RewardModel
from curation_assets.engines.reward_model import HIDDEN, reward_mlp
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.numeric.rankings import Preference, bradley_terry_loss, preference_accuracy, ranked_pairs
from curation_assets.stores.documents import save_tensors, save_text
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.rankings import RankedImage, load_ranked_image

BATCH = 64  # pairs: 2 × 32 in the supplement


@dataclass(frozen=True)
class RewardRecipe:
    """How a reward model is trained. The defaults are the supplement's, which names no weight decay (formulas.md
    §9.3)."""

    updates: int = 20_000
    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    activation: str = "none"
    seed: int = 0
    hidden: tuple[int, ...] = HIDDEN

    def __post_init__(self) -> None:
        if self.updates < 1 or self.learning_rate <= 0:
            raise ValueError(f"updates must be ≥ 1 and learning_rate > 0, got {self.updates}, {self.learning_rate}")


@dataclass(frozen=True)
class RankedFeatures:
    """Frozen features of ranked pairs, image by image."""

    features: np.ndarray  # (N, D) float32
    starts: np.ndarray  # (M + 1,) where each image's captions begin
    ranks: list[tuple[float, ...]] = field(default_factory=list)  # M images

    def pairs(self) -> np.ndarray:
        """(P, 2) rows of the better and the worse caption, image by image."""
        pairs = [
            (start + better, start + worse)
            for start, ranks in zip(self.starts, self.ranks, strict=False)
            for better, worse in ranked_pairs(ranks)
        ]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def ranked_features(
    path: Path, ranked: Sequence[RankedImage], encoder: PairEncoder, cache: Path | None = None
) -> RankedFeatures:
    """Features of every pair of a ranking file, from `cache` where it holds them for this file and encoder."""
    captions = [caption for entry in ranked for caption in entry.captions]
    ranks = [entry.ranks for entry in ranked]
    starts = np.cumsum([0, *(len(entry.captions) for entry in ranked)])
    made_of = {"rankings": file_sha256(path), "encoder": encoder.identity.weights_sha256, "pairs": str(len(captions))}
    if cache is not None and cache.is_file():
        from safetensors import safe_open

        with safe_open(cache, framework="numpy") as stored:
            if stored.metadata() == made_of:
                return RankedFeatures(load_arrays(cache)["features"], starts, ranks)
    parts = []
    for first in range(0, len(ranked), BATCH):
        batch = ranked[first : first + BATCH]
        images = [image for entry in batch for image in [load_ranked_image(path, entry.image)] * len(entry.captions)]
        parts.append(encoder.embed_pairs(images, [caption for entry in batch for caption in entry.captions]))
    features = np.concatenate(parts)
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(cache, {"features": features}, made_of)
    return RankedFeatures(features, starts, ranks)


def train_reward_model(
    training: RankedFeatures, out: Path, recipe: RewardRecipe, *, pair_encoder: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Fit the MLP to the pairs and write `out`: model.safetensors, config.json, card.json. Returns the card.

    All pairs of an image are on one side of the split, so they are drawn freely here. `pair_encoder`: the address that
    scoring will use. Raises ValueError where there is no pair.
    """
    pairs = training.pairs()
    if not len(pairs):
        raise ValueError("no two captions of an image have different ranks; there is nothing to learn")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        rng = np.random.default_rng(recipe.seed)
        mean = torch.from_numpy(training.features.mean(axis=0))
        scale = torch.from_numpy(training.features.std(axis=0)).clamp_min(1e-6)
        features = (torch.from_numpy(training.features) - mean) / scale
        mlp = reward_mlp(features.shape[1], recipe.activation, recipe.hidden)
        optimiser = torch.optim.AdamW(mlp.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        mlp.train()
        for _ in range(recipe.updates):
            chosen = pairs[rng.integers(len(pairs), size=BATCH)]
            margin = mlp(features[chosen[:, 0]]) - mlp(features[chosen[:, 1]])
            loss = nn.functional.softplus(-margin).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        mlp.eval()
        with torch.inference_mode():
            scores = mlp(features)[:, 0].double().numpy()
    card = {
        "recipe": asdict(recipe),
        "pairs": len(pairs),
        "images": len(training.ranks),
        "training_loss": bradley_terry_loss(scores[pairs[:, 0]] - scores[pairs[:, 1]]),
        "pair_encoder": pair_encoder,
        **facts,
    }
    out.mkdir(parents=True, exist_ok=True)
    state = {name: value.half().contiguous() for name, value in mlp.state_dict().items()}
    save_tensors(out / "model.safetensors", {**state, "mean": mean, "scale": scale}, {"format": "pt"})
    config = {
        "model_type": "reward_mlp",
        "width": features.shape[1],
        "activation": recipe.activation,
        "hidden": recipe.hidden,
        "pair_encoder": pair_encoder,
    }
    save_text(out / "config.json", json.dumps(config, indent=2) + "\n")
    save_text(out / "card.json", json.dumps(card, indent=2) + "\n")
    return card


def preference_of(path: Path, ranked: Sequence[RankedImage], scorer: RewardModel | ImageTextEncoder) -> Preference:
    """How a reward model's rewards, or an encoder's cosines, agree with the ranks."""
    scores = []
    for entry in ranked:
        images = [load_ranked_image(path, entry.image)] * len(entry.captions)
        if isinstance(scorer, RewardModel):
            scores.append(scorer.reward_pairs(images, entry.captions))
        else:
            seen = scorer.embed_images(images[:1])
            scores.append(clip_cosine(np.repeat(seen, len(images), axis=0), scorer.embed_texts(entry.captions)))
    return preference_accuracy(scores, [entry.ranks for entry in ranked])
