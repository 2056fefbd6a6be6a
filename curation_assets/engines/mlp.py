"""The one multi-layer perceptron: students, reward models and their training share it."""

import itertools
from collections.abc import Sequence

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
