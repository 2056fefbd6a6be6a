"""A student without a transformer: one vector per word piece, one layer over three neighbours, two over their pool.

Word pieces are those of the sentence encoder that its teacher reads. A value depends on its caption alone: a batch
holds captions of one length, nothing is padded.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines.batches import run_unpadded

MAX_TOKENS = 128  # as the other students (formulas.md §1.8)
WEIGHTS = "static.safetensors"
BATCH = 1_024  # captions at once: a caption costs so little that small batches pay for calls alone


class StaticNet(torch.nn.Module):
    """Word pieces → hidden units; each training adds its own outputs, the student has one."""

    def __init__(self, pieces: int, width: int, channels: int, hidden: int, *, is_sparse: bool = False) -> None:
        """`pieces`: size of the vocabulary. `width`: of a piece's vector. `is_sparse`: gradients of the vectors."""
        super().__init__()
        self.vectors = torch.nn.Embedding(pieces, width, sparse=is_sparse)
        self.neighbours = torch.nn.Linear(3 * width, channels)
        self.hidden = torch.nn.Linear(2 * channels, hidden)
        self.out = torch.nn.Linear(hidden, 1)

    def features(self, ids: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """(B, T) of real pieces → (B, hidden)."""
        vectors = torch.nn.functional.dropout(self.vectors(ids), dropout, self.training)  # (B, T, D)
        edged = torch.nn.functional.pad(vectors, (0, 0, 1, 1))  # (B, T + 2, D): zeros before and after
        windows = torch.cat([edged[:, :-2], vectors, edged[:, 2:]], dim=2)  # (B, T, 3 D)
        found = torch.relu(self.neighbours(windows))  # (B, T, C)
        pooled = torch.cat([found.mean(dim=1), found.amax(dim=1)], dim=1)  # (B, 2 C)
        return torch.relu(self.hidden(torch.nn.functional.dropout(pooled, dropout, self.training)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(B, T) → (B,)."""
        return self.out(self.features(ids))[:, 0]


@dataclass(eq=False, repr=False)
class StaticStudent:
    """The role student on a StaticNet."""

    identity: ModelIdentity
    net: StaticNet
    tokenizer: Tokenizer  # without padding, cutting at MAX_TOKENS
    device: str

    @torch.inference_mode()
    def score_captions(self, captions: Texts) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped; cut at 128 tokens."""
        if not len(captions):
            return np.zeros(0)
        with _one_thread():
            found = run_unpadded(captions, self._token_ids, self.net, batch_size=BATCH, device=self.device)
        return found.double().cpu().numpy()

    def _token_ids(self, texts: Texts) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts))]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another cost more than this net: a tenth of the captions on a machine with other work.
    The tokenizer keeps its own.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_static(identity: ModelIdentity, folder: Path, encoder_folder: Path, device: str) -> StaticStudent:
    """The net in `folder`; `encoder_folder` holds the tokenizer."""
    return StaticStudent(identity, read_net(folder).to(device), piece_tokenizer(encoder_folder), device)


def read_net(folder: Path) -> StaticNet:
    """The net in `folder`, in float32; its shapes are those of the file."""
    tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    pieces, width = tensors["vectors.weight"].shape
    channels, hidden = len(tensors["neighbours.bias"]), len(tensors["hidden.bias"])
    net = StaticNet(pieces, width, channels, hidden)
    net.load_state_dict(tensors, strict=True)
    return net.eval()


def piece_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json of an encoder, without padding, cutting at MAX_TOKENS."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer
