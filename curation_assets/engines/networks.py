"""Networks that students, reward models and their training share."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module] | None] = {"none": None, "relu": nn.ReLU}


def build_mlp(widths: Sequence[int], activation: str = "relu", dropout: Sequence[float] = ()) -> nn.Sequential:
    """Linear layers widths[0] → … → widths[-1], drawn in this order from torch's random state.

    The activation and `dropout[i]` follow hidden layer i; nothing follows the last. Raises ValueError for an unknown
    activation.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    chosen = ACTIVATIONS[activation]
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(before, after))
        if number < len(widths) - 2 and chosen is not None:
            layers.append(chosen())
        if number < len(dropout):
            layers.append(nn.Dropout(dropout[number]))
    return nn.Sequential(*layers)


class MeanPooledRegressor(torch.nn.Module):
    """A sentence encoder whose mean token vector goes through one linear layer."""

    def __init__(self, body: Any) -> None:
        """`body`: a transformers encoder without pooling layer."""
        super().__init__()
        self.body = body
        self.head = torch.nn.Linear(body.config.hidden_size, 1)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(B, T), (B, T) → (B,)."""
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # (B, T, D)
        mask = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)  # (B, D)
        return self.head(mean)[:, 0]
