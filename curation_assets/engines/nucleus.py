"""Nucleus sampling in which every row has its own random numbers: a caption never depends on its batch."""

from collections.abc import Sequence

import numpy as np
import torch


def row_uniforms(seeds: Sequence[int], count: int, steps: int) -> np.ndarray:
    """Random numbers for `count` captions per seed: (len(seeds) * count, steps) float64 in [0, 1).

    Row i * count + j depends on (seeds[i], j) only. Raises ValueError for a negative seed.
    """
    if any(seed < 0 for seed in seeds):
        raise ValueError(f"seeds must be non-negative, got {min(seeds)}")
    rows = [np.random.default_rng([seed, j]).random(steps) for seed in seeds for j in range(count)]
    return np.array(rows).reshape(len(seeds) * count, steps)


def nucleus(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, V) logits → (B, K) token ids, rising, and their (B, K) float64 probabilities (0 outside the
    nucleus).

    Temperature, then top-k (0: all), then top-p, in the library's order. Holtzman et al. 2020 §3.1: the
    smallest set of most likely tokens whose mass reaches `top_p`.
    """
    kept = min(top_k, logits.shape[-1]) if top_k else logits.shape[-1]
    values, tokens = torch.topk(logits, kept, dim=-1)  # (B, K), falling
    probabilities = torch.softmax(values.double() / temperature, dim=-1)
    mass_before = torch.cumsum(probabilities, dim=-1) - probabilities
    probabilities = torch.where(mass_before < top_p, probabilities, 0.0)
    # In the order of the vocabulary, not of probability: a near tie cannot swap two tokens between batches.
    tokens, order = torch.sort(tokens, dim=-1)
    probabilities = probabilities.gather(-1, order)
    return tokens, probabilities / probabilities.sum(dim=-1, keepdim=True)


def sample_nucleus(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> torch.Tensor:
    """(B, V) logits, (B,) float64 random numbers in [0, 1) → (B,) tokens of the nucleus.

    Inverts the cumulative distribution, so that a row depends on its own logits and random number alone.
    """
    tokens, probabilities = nucleus(logits, temperature, top_k, top_p)  # (B, K) each
    cumulative = torch.cumsum(probabilities, dim=-1)
    # Below 1 by more than rounding, so that the last cumulative value is always above.
    draws = (uniforms * (1 - 1e-12)).unsqueeze(-1) * cumulative[:, -1:]
    rank = torch.searchsorted(cumulative, draws, right=True)  # (B, 1): the first with cumulative > draw
    return tokens.gather(-1, rank)[:, 0]
