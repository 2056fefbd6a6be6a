"""A sentence encoder's inner layers: pooled token vectors of chosen ones, for heads that do not read the last."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import autocast, run_unpadded
from curation_assets.engines.bert import BertEncoder, load_bert

MAX_TOKENS = 128  # as the students (formulas.md §1.8)
POOLINGS = ("mean", "max")


@dataclass(eq=False, repr=False)
class LayerEncoder:
    """Per layer and pooling one unit vector, side by side. Layers above the highest requested are not run."""

    identity: ModelIdentity
    model: BertEncoder
    layers: Sequence[int]  # numbers from 1 (the first block's output)
    pooling: Sequence[str]  # over all tokens, special ones included
    batch_size: int
    device: str
    precision: torch.dtype | None = None  # of the weights; None: float32, in mixed precision on a GPU

    @property
    def width(self) -> int:
        """Columns of an embedding: layers × poolings × hidden size."""
        return len(self.layers) * len(self.pooling) * self.model.width

    @torch.inference_mode()
    def embed_sentences(self, sentences: Texts) -> np.ndarray:
        """(N,) strings → (N, L · P · D) float32; each D numbers are a unit vector. Cut at 128 tokens.

        A repeated sentence is computed once; a batch holds sentences of one length (docs/decisions/0044).
        """
        if not len(sentences):
            return np.zeros((0, self.width), dtype=np.float32)
        return run_unpadded(
            sentences, self._token_ids, self._encode, batch_size=self.batch_size, device=self.device
        ).numpy()

    def _token_ids(self, texts: Texts) -> list[list[int]]:
        return self.model.token_ids(texts, MAX_TOKENS)

    def _encode(self, ids: torch.Tensor) -> torch.Tensor:
        """(B, T) → (B, L · P · D)."""
        with contextlib.nullcontext() if self.precision else autocast(self.device):
            states = self.model.hidden_states(ids)
        is_real = torch.ones_like(ids, dtype=torch.bool)[:, :, None]
        pooled = [pool(states[layer].float(), is_real, how) for layer in self.layers for how in self.pooling]
        return torch.cat([torch.nn.functional.normalize(vectors, dim=-1) for vectors in pooled], dim=1).cpu()


def pool(states: torch.Tensor, is_real: torch.Tensor, how: str) -> torch.Tensor:
    """(B, T, D), (B, T, 1) → (B, D): mean or maximum over the real tokens."""
    if how == "max":
        return states.masked_fill(~is_real, -torch.inf).amax(dim=1)
    return states.masked_fill(~is_real, 0.0).sum(dim=1) / is_real.sum(dim=1)


def load_layers(
    identity: ModelIdentity,
    address: ModelAddress,
    layers: Sequence[int],
    pooling: Sequence[str],
    batch_size: int,
    device: str,
    precision: torch.dtype | None = None,
) -> LayerEncoder:
    """`layers` of the encoder at `address` (BERT layout, such as embedded:minilm); `precision` as in LayerEncoder.

    Raises ValueError for no layers, a layer that the model does not have, an unknown pooling, or another architecture.
    """
    model = load_bert(local_folder(address), device, dtype=precision or torch.float32)
    if not layers or not all(1 <= layer <= model.depth for layer in layers):
        raise ValueError(f"{address.text}: expected layers in [1, {model.depth}], got {list(layers)}")
    if not pooling or not set(pooling) <= set(POOLINGS):
        raise ValueError(f"{address.text}: expected poolings of {', '.join(POOLINGS)}, got {list(pooling)}")
    model.depth = max(layers)
    return LayerEncoder(identity, model, tuple(layers), tuple(pooling), batch_size, device, precision)
