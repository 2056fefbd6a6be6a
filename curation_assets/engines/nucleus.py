"""Nucleus sampling in which every row has its own random numbers: a caption never depends on its batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor


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
    values, tokens = torch.topk(logits.double() / temperature, kept, dim=-1)  # (B, K), falling
    probabilities = torch.softmax(values, dim=-1)
    mass_before = torch.cumsum(probabilities, dim=-1) - probabilities
    probabilities = torch.where(mass_before < top_p, probabilities, 0.0)
    # In the order of the vocabulary, not of probability: a near tie cannot swap two tokens between batches.
    tokens, order = torch.sort(tokens, dim=-1)
    probabilities = probabilities.gather(-1, order)
    return tokens, probabilities / probabilities.sum(dim=-1, keepdim=True)


class SeededNucleus(LogitsProcessor):
    """Chooses the next token of row b at step t by inverting the cumulative distribution at uniforms[b, t].

    Exact nucleus sampling, decided inside the processor: the chosen token is the only finite logit, so that
    greedy decoding picks it. The library's own sampling draws one random stream for the whole batch.
    One object serves one call of `generate`.
    """

    def __init__(self, uniforms: np.ndarray, temperature: float, top_k: int, top_p: float) -> None:
        """`uniforms`: (B, steps) in [0, 1)."""
        if not (temperature > 0 and top_k >= 0 and 0 < top_p <= 1):
            raise ValueError(
                f"expected temperature > 0, top_k >= 0, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}"
            )
        # Below 1 by more than rounding, so that the last cumulative value is always above.
        self.uniforms = torch.from_numpy(uniforms * (1 - 1e-12))
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """(B, V) scores → (B, V), minus infinity except at the sampled token."""
        tokens, probabilities = nucleus(scores, self.temperature, self.top_k, self.top_p)  # (B, K) each
        cumulative = torch.cumsum(probabilities, dim=-1)
        draws = self.uniforms[:, self.step].to(cumulative.device).unsqueeze(-1) * cumulative[:, -1:]
        rank = torch.searchsorted(cumulative, draws, right=True)  # (B, 1): the first with cumulative > draw
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens.gather(-1, rank), 0.0)
