"""BERT encoders on torch and tokenizers alone: what transformers' BertModel computes, without its import.

Importing transformers' model classes takes longer than importing torch, and than scoring a few captions. Every
operation here is the one that transformers calls, in its order: the numbers are the same to the last bit (tested).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer

from curation_assets.core.roles import Texts


@dataclass(eq=False, repr=False)
class BertEncoder:
    """The blocks of a BERT encoder (Devlin et al. 2019) and its tokenizer. Inference only."""

    weights: Mapping[str, torch.Tensor]  # by the names of a checkpoint
    tokenizer: Tokenizer  # without padding
    padding: int  # the id to pad with
    depth: int  # blocks that run
    heads: int
    epsilon: float  # of the layer norms

    @property
    def width(self) -> int:
        """D, the size of a token's vector."""
        return int(self.weights["embeddings.word_embeddings.weight"].shape[1])

    def tokenize(self, texts: Texts, max_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (B, T) and which of them are real (B, T), padded to the longest text, cut at `max_tokens`."""
        rows = self.token_ids(texts, max_tokens)
        longest = max(len(row) for row in rows)
        ids = torch.tensor([row + [self.padding] * (longest - len(row)) for row in rows], device=self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        return ids, torch.arange(longest, device=self.device) < lengths[:, None]

    def token_ids(self, texts: Texts, max_tokens: int) -> list[list[int]]:
        """Ids of each text's tokens, special ones included, cut at `max_tokens`; on all cores."""
        self.tokenizer.enable_truncation(max_tokens)
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts))]

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.weights["embeddings.word_embeddings.weight"].device

    def hidden_states(self, ids: torch.Tensor, is_real: torch.Tensor | None = None) -> list[torch.Tensor]:
        """(B, T), (B, T) → depth + 1 tensors (B, T, D): the embeddings, then the output of every block.

        `is_real`: None where all tokens are.
        """
        word, segment, position = (
            self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type", "position")
        )
        embedded = F.embedding(ids, word) + segment[0] + position[: ids.shape[1]]
        states = [self._norm(embedded, "embeddings")]
        mask = None if is_real is None or bool(is_real.all()) else is_real[:, None, None, :]  # (B, 1, 1, T)
        for number in range(self.depth):
            states.append(self._block(states[-1], mask, f"encoder.layer.{number}"))
        return states

    def _block(self, states: torch.Tensor, mask: torch.Tensor | None, name: str) -> torch.Tensor:
        """Attention, then two dense layers; each is added to its input and normalised."""
        batch, length, width = states.shape
        query, key, value = (
            self._dense(states, f"{name}.attention.self.{part}").view(batch, length, self.heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )  # (B, H, T, D / H)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = self._dense(attended.transpose(1, 2).reshape(batch, length, width), f"{name}.attention.output.dense")
        states = self._norm(attended + states, f"{name}.attention.output")
        inner = F.gelu(self._dense(states, f"{name}.intermediate.dense"))  # (B, T, 4 D)
        return self._norm(self._dense(inner, f"{name}.output.dense") + states, f"{name}.output")

    def _dense(self, states: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(states, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, states: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(states, (states.shape[-1],), weight, bias, self.epsilon)


def load_bert(folder: Path, device: str, dtype: torch.dtype = torch.float32) -> BertEncoder:
    """The encoder in `folder` (config.json, model.safetensors, tokenizer.json); weights and arithmetic in `dtype`.

    Raises ValueError for another architecture than BERT with exact GELU.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    got = {name: config.get(name, expected[name] if name == "position_embedding_type" else None) for name in expected}
    if got != expected:
        raise ValueError(f"{folder}/config.json: expected a BERT encoder with {expected}, got {got}")
    with safe_open(folder / "model.safetensors", "pt", device=device) as file:
        weights = {name: file.get_tensor(name) for name in file.keys() if name.startswith(("embeddings.", "encoder."))}  # noqa: SIM118
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return BertEncoder(
        {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()},
        tokenizer,
        padding=int(config["pad_token_id"]),
        depth=int(config["num_hidden_layers"]),
        heads=int(config["num_attention_heads"]),
        epsilon=float(config["layer_norm_eps"]),
    )
