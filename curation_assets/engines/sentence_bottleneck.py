"""The role sentence_bottleneck: a linear autoencoder with a narrow middle over sentence embeddings (our own SBA)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from curation_assets.core.roles import ModelIdentity, SentenceEncoder, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`: the setting's address, else the card's, else embedded:minilm."""
    encoder = settings.get("sentence_encoder") or card_of(address).get("sentence_encoder") or "embedded:minilm"
    return {"sentence_encoder": resolve(encoder)}


NEEDS = RoleNeeds(settings=("sentence_encoder",), companions=companions)


class LinearBottleneck:
    """embedding → its D' strongest directions → embedding. What no such direction holds is lost."""

    def __init__(self, identity: ModelIdentity, weights: Mapping[str, np.ndarray], encoder: SentenceEncoder) -> None:
        """`weights`: mean (D,), components (D', D) with orthonormal rows."""
        self.identity = identity
        self.mean = weights["mean"].astype(np.float64)
        self.components = weights["components"].astype(np.float64)
        self.encoder = encoder

    def reconstruct_embeddings(self, captions: Texts) -> tuple[np.ndarray, np.ndarray]:
        """(N,) captions → (N, D) embeddings at unit length, and (N, D) their reconstructions (any length)."""
        embeddings = self.encoder.embed_sentences(captions).astype(np.float64)  # (N, D)
        code = (embeddings - self.mean) @ self.components.T  # (N, D')
        return embeddings, code @ self.components + self.mean


def load(request: EngineRequest) -> LinearBottleneck:
    """A folder with bottleneck.safetensors and card.json (embedded:sentence_bottleneck, path:).

    Raises ValueError where the encoder's weights are not those it was fitted on.
    """
    from curation_assets.engines.sentence_layers import load_layers

    card = card_of(request.address)
    companion = request.for_companion("sentence_encoder", card["sentence_encoder_sha256"])
    weights = load_file(local_folder(request.address) / "bottleneck.safetensors")
    encoder = load_layers(
        companion.identity, companion.address, card["layers"], ["mean"], request.batch_size, request.device
    )
    return LinearBottleneck(request.identity, weights, encoder)
