"""Muon: momentum whose updates are made nearly orthogonal, for the weight matrices inside a network.

torch.optim.Muon does this arithmetic in bfloat16, which processors without instructions for it emulate: 180 ms a step
of a captioner's matrices instead of 9 (docs/decisions/0051). Here it is float32, all matrices of one shape at once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

#: Of the quintic iteration (Jordan et al. 2024); they bring singular values near 1, not to it.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3  # five in the paper; three retrieve as well (docs/decisions/0051)
MOMENTUM = 0.95
RMS = 0.2  # of an update's entries, as AdamW's are, so that learning rates are comparable (Liu et al. 2025 §2.2)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal, with decoupled weight decay (Jordan et al. 2024; Liu et al. 2025 §2.2)."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        """`matrices`: (A, B) parameters. Raises ValueError for one of another number of dimensions."""
        listed = list(matrices)
        for matrix in listed:
            if matrix.ndim != 2:
                raise ValueError(f"expected matrices, got a parameter of shape {tuple(matrix.shape)}")
        super().__init__(listed, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[nn.Parameter]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(tuple(matrix.shape), []).append(matrix)
            for shape, matrices in alike.items():
                updates = orthogonalised(torch.stack([self._direction(matrix) for matrix in matrices]))
                size = group["lr"] * RMS * max(shape) ** 0.5
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)

    def _direction(self, matrix: nn.Parameter) -> torch.Tensor:
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(state["momentum"], MOMENTUM)


def orthogonalised(matrices: torch.Tensor, iterations: int = ITERATIONS) -> torch.Tensor:
    """(M, A, B) → (M, A, B) with the same singular vectors and singular values near 1; zeros stay zeros."""
    linear, cubic, quintic = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.mT if is_tall else x


def hidden_matrices(modules: Mapping[str, nn.Module | nn.Parameter]) -> list[nn.Parameter]:
    """Weights of the linear layers that take gradients; without those that are an embedding as well."""
    layers = [layer for module in modules.values() if isinstance(module, nn.Module) for layer in module.modules()]
    embeddings = {id(layer.weight) for layer in layers if isinstance(layer, nn.Embedding)}
    weights: dict[int, Any] = {
        id(layer.weight): layer.weight for layer in layers if isinstance(layer, nn.Linear | Conv1D)
    }
    return [weight for key, weight in weights.items() if weight.requires_grad and key not in embeddings]
