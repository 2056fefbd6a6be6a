"""The heads of photo_pair: fitted on features of photos and sentence vectors of captions, and measured on others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from curation_assets.engines.photo_pair import to_stored
from curation_assets.numeric.schedule import warm_up_then_cosine


@dataclass(frozen=True)
class Recipe:
    """Every setting of a training run; the defaults were chosen by cross-validation inside the training photos."""

    heads: int = 5
    reduced: int = 256  # principal components of the image features
    hidden: int = 512
    width: int = 128  # of a head's joint space
    epochs: int = 100
    batch: int = 512
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    image_dropout: float = 0.4
    text_dropout: float = 0.2
    input_dropout: float = 0.1  # of the reduced image features
    image_noise: float = 0.3
    text_noise: float = 0.02
    label_smoothing: float = 0.05
    conse_weight: float = 0.2  # of the untrained block in the score
    more_captions: int = 512  # further captions in a batch, negatives of every photo

    def __post_init__(self) -> None:
        whole = {name: getattr(self, name) for name in ("heads", "reduced", "hidden", "width", "epochs", "batch")}
        if min(whole.values()) < 1:
            raise ValueError(f"sizes and counts must be at least 1, got {whole}")
        if not 0 <= self.conse_weight < 1:
            raise ValueError(f"conse_weight must be in [0, 1), got {self.conse_weight}")


@dataclass(frozen=True)
class PairFeatures:
    """N photos and their captions as the frozen encoders see them."""

    images: np.ndarray  # (V, N, F) float16, V views of each photo; the first is the one that an engine sees
    probabilities: np.ndarray  # (N, 1000) of ImageNet's classes, first view
    sentences: np.ndarray  # (T, 384) unit vectors of all captions, a photo's own together
    starts: np.ndarray  # (N + 1,) where a photo's captions begin and end

    def __len__(self) -> int:
        return len(self.starts) - 1

    def first_captions(self) -> np.ndarray:
        """(N, 384)."""
        return self.sentences[self.starts[:-1]]

    def __getitem__(self, rows: np.ndarray) -> "PairFeatures":
        places = [np.arange(self.starts[row], self.starts[row + 1]) for row in rows]
        return PairFeatures(
            self.images[:, rows],
            self.probabilities[rows],
            self.sentences[np.concatenate(places)],
            np.cumsum([0, *(len(one) for one in places)]),
        )


class Towers(nn.Module):
    """M independent perceptrons with one hidden layer, run side by side."""

    def __init__(
        self, heads: int, inputs: int, hidden: int, width: int, gain: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.hidden_weight = nn.Parameter(gain * torch.randn(heads, inputs, hidden, generator=generator) / inputs**0.5)
        self.hidden_bias = nn.Parameter(torch.zeros(heads, 1, hidden))
        self.out_weight = nn.Parameter(torch.randn(heads, hidden, width, generator=generator) / hidden**0.5)
        self.out_bias = nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(M, B, K), (M, B, H) scaled dropout mask → (M, B, E), unit length."""
        hidden = F.gelu(torch.baddbmm(self.hidden_bias, inputs, self.hidden_weight)) * mask
        return F.normalize(torch.baddbmm(self.out_bias, hidden, self.out_weight), dim=-1)

    def tensors(self, side: str) -> dict[str, torch.Tensor]:
        """By the names that `engines.photo_pair` reads."""
        return {
            f"{side}.hidden.weight": self.hidden_weight.detach().transpose(1, 2),
            f"{side}.hidden.bias": self.hidden_bias.detach()[:, 0],
            f"{side}.out.weight": self.out_weight.detach().transpose(1, 2),
            f"{side}.out.bias": self.out_bias.detach()[:, 0],
        }


def reduction(features: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Standardise and project: (N, F) → weight (K, F) and bias (K,) of a linear layer onto the principal components.

    K is at most `size` and N − 1. Components keep their relative variances; their mean square is 1 on `features`.
    """
    features = features.astype(np.float64)
    mean, sd = features.mean(axis=0), features.std(axis=0)
    sd = sd + 1e-3 * features.std()  # a feature that hardly varies is not blown up
    z = (features - mean) / sd
    # the smaller of the two Gram matrices has the same eigenvalues
    if len(z) <= z.shape[1]:
        values, left = np.linalg.eigh(z @ z.T)
        kept = np.argsort(values)[::-1][: min(size, len(z) - 1)]
        components = (z.T @ left[:, kept]) / np.sqrt(np.maximum(values[kept], 1e-9))  # (F, K)
    else:
        values, components = np.linalg.eigh(z.T @ z)
        components = components[:, np.argsort(values)[::-1][:size]]
    # an eigenvector's sign is the library's choice: make the largest entry positive
    largest = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    components = components * np.sign(largest)
    components = components / np.sqrt(((z @ components) ** 2).mean())
    weight = (components / sd[:, None]).T
    return weight.astype(np.float32), (-(weight @ mean)).astype(np.float32)


def contrastive_loss(
    towers: Mapping[str, Towers],
    scale: torch.Tensor,
    images: torch.Tensor,
    sentences: torch.Tensor,
    more: torch.Tensor | None,
    recipe: Recipe,
    generator: torch.Generator,
) -> torch.Tensor:
    """Cross-entropy of each image among the captions and of each caption among the images, under dropout and noise.

    `images`: (M, B, K), a head's own batch each, and `sentences`: (M, B, 384) of their captions. `more`: (Q, 384), of
    which `recipe.more_captions` a head are drawn, negatives of every image. `scale`: (M, 1, 1), log of the logits'.
    """
    heads, batch = images.shape[:2]

    def kept(shape: tuple[int, ...], dropout: float) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) >= dropout).float() / (1 - dropout)

    def noisy(vectors: torch.Tensor, noise: float) -> torch.Tensor:
        return vectors + noise * torch.randn(vectors.shape, generator=generator)

    seen = noisy(images * kept(tuple(images.shape), recipe.input_dropout), recipe.image_noise)
    if more is not None:
        places = torch.randint(len(more), (heads, recipe.more_captions), generator=generator)
        sentences = torch.cat([sentences, more[places]], dim=1)
    read = noisy(sentences, recipe.text_noise)
    u = towers["image"](seen, kept((heads, batch, recipe.hidden), recipe.image_dropout))
    v = towers["text"](read, kept((*read.shape[:2], recipe.hidden), recipe.text_dropout))
    logits = torch.bmm(u, v.transpose(1, 2)) * scale.exp().clamp(max=100.0)  # (M, B, B + Q)
    target = torch.arange(batch).repeat(heads)
    loss = F.cross_entropy(logits.flatten(0, 1), target, label_smoothing=recipe.label_smoothing)
    back = logits[:, :, :batch].transpose(1, 2).flatten(0, 1)
    return loss + F.cross_entropy(back, target, label_smoothing=recipe.label_smoothing)


def fit(
    pairs: PairFeatures,
    classes: np.ndarray,
    recipe: Recipe,
    seed: int,
    *,
    more: np.ndarray | None = None,
    advance: Callable[[int], None] = lambda updates: None,
) -> dict[str, torch.Tensor]:
    """Tensors of the engine as they are stored. Same input and seed, same bytes on the same machine.

    `classes`: (1000, 384) sentence vectors of ImageNet's classes. `more`: (Q, 384) captions of no photo, negatives of
    all. `advance` is called with the number of updates done. Contrastive loss both ways (Radford et al. 2021) on one
    caption and one view per photo and update, drawn anew; every head has its own batches.
    """
    generator = torch.Generator().manual_seed(seed)
    views, count = pairs.images.shape[:2]
    weight, bias = reduction(pairs.images[0], recipe.reduced)
    images = torch.from_numpy(np.stack([view.astype(np.float32) @ weight.T + bias for view in pairs.images]))  # (V,N,K)
    sentences = torch.from_numpy(pairs.sentences.astype(np.float32))
    starts = torch.from_numpy(pairs.starts)
    counts = starts.diff()
    others = None if more is None or not recipe.more_captions else torch.from_numpy(more.astype(np.float32))
    heads, batch = recipe.heads, min(recipe.batch, count)
    dim = sentences.shape[1]
    towers = {
        "image": Towers(heads, images.shape[2], recipe.hidden, recipe.width, 1.0, generator),
        # numbers of a unit vector are about dim^-½; a half of the usual scale keeps the first steps gentle
        "text": Towers(heads, dim, recipe.hidden, recipe.width, 0.5 * dim**0.5, generator),
    }
    scale = nn.Parameter(torch.full((heads, 1, 1), float(np.log(20.0))))
    weights = [parameter for tower in towers.values() for parameter in tower.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": recipe.weight_decay}, {"params": [scale], "weight_decay": 0.0}],
        lr=recipe.learning_rate,
    )
    per_epoch = max(1, count // batch)
    steps = recipe.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warm_up_then_cosine(step, steps, max(1, steps // 10))
    )

    for _ in range(recipe.epochs):
        order = torch.stack([torch.randperm(count, generator=generator) for _ in range(heads)])
        for rows in order[:, : per_epoch * batch].split(batch, dim=1):  # (M, B)
            view = torch.randint(views, rows.shape, generator=generator)
            drawn = torch.rand(rows.shape, generator=generator) * counts[rows]
            seen, read = images[view, rows], sentences[starts[rows] + drawn.long()]
            loss = contrastive_loss(towers, scale, seen, read, others, recipe, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            advance(1)
    shares = [(1 - recipe.conse_weight) / heads] * heads + [recipe.conse_weight]
    tensors = {
        "image.reduce.weight": torch.from_numpy(weight),
        "image.reduce.bias": torch.from_numpy(bias),
        **towers["image"].tensors("image"),
        **towers["text"].tensors("text"),
        "class_vectors": torch.from_numpy((classes - classes.mean(axis=0)).astype(np.float32)),
        "text_centre": sentences.mean(dim=0),
        "block_weights": torch.tensor(shares),
    }
    return to_stored(tensors)


@dataclass(frozen=True)
class Figures:
    """How well photos find their own caption among N, with every photo's own share so that intervals can be drawn."""

    auc: float  # own caption above all others' of other photos, in [0, 1]
    recall: dict[int, float]  # k → share of photos whose own caption is among the k best
    photos: int

    def described(self) -> dict[str, float | int]:
        """For a card."""
        return {
            "auc": round(self.auc, 4),
            **{f"recall@{k}": round(r, 4) for k, r in self.recall.items()},
            "photos": self.photos,
        }


def figures(scores: np.ndarray, ks: Sequence[int] = (1, 5, 10)) -> Figures:
    """(N, N) scores of photos (rows) with captions (columns), own pairs on the diagonal. Ties count against."""
    own = np.diag(scores)
    others = scores[~np.eye(len(scores), dtype=bool)]
    ordered = np.sort(others)
    below = np.searchsorted(ordered, own, "left") + np.searchsorted(ordered, own, "right")
    rank = (scores >= own[:, None]).sum(axis=1)  # 1 is best
    return Figures(float(below.mean() / 2 / len(others)), {k: float((rank <= k).mean()) for k in ks}, len(scores))
