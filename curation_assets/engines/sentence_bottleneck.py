"""The role sentence_bottleneck: a linear autoencoder with a narrow middle over sentence embeddings (our own SBA)."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from safetensors.numpy import load_file

from curation_assets.core.roles import ModelIdentity, SentenceEncoder
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.identities import identity_of
from curation_assets.engines.sentence_layers import load_layers


class LinearBottleneck:
    """embedding → its D' strongest directions → embedding. What no such direction holds is lost."""

    def __init__(self, identity: ModelIdentity, weights: Mapping[str, np.ndarray], encoder: SentenceEncoder) -> None:
        """`weights`: mean (D,), components (D', D) with orthonormal rows."""
        self.identity = identity
        self.mean = weights["mean"].astype(np.float64)
        self.components = weights["components"].astype(np.float64)
        self.encoder = encoder

    def reconstruct_embeddings(self, captions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(N,) captions → (N, D) embeddings at unit length, and (N, D) their reconstructions (any length)."""
        embeddings = self.encoder.embed_sentences(captions).astype(np.float64)  # (N, D)
        code = (embeddings - self.mean) @ self.components.T  # (N, D')
        return embeddings, code @ self.components + self.mean


def load(request: EngineRequest) -> LinearBottleneck:
    """A folder with bottleneck.safetensors and card.json (embedded:sentence_bottleneck, path:).

    Raises ValueError where the encoder's weights are not those it was fitted on.
    """
    folder = local_folder(request.address)
    card = json.loads((folder / "card.json").read_text())
    address = request.companions["sentence_encoder"]
    identity = identity_of("sentence_encoder", address, {})
    if identity.weights_sha256 != card["sentence_encoder_sha256"]:
        raise ValueError(
            f"{request.address.text}: fitted on {card['sentence_encoder']} with weights "
            f"{card['sentence_encoder_sha256'][:12]}, got {identity.weights_sha256[:12]}; train it again"
        )
    encoder = load_layers(identity, address, card["layers"], ["mean"], request.batch_size, request.device)
    return LinearBottleneck(request.identity, load_file(folder / "bottleneck.safetensors"), encoder)
