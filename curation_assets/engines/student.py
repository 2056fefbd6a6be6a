"""The role student: the distilled concreteness regressor, from the folder that `students.train_student` wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import autocast, quiet_loading, run_by_length
from curation_assets.roles import ModelIdentity, SentenceEncoder


class RidgeStudent:
    """A linear head on frozen sentence embeddings."""

    def __init__(
        self,
        identity: ModelIdentity,
        coefficients: np.ndarray,
        intercept: float,
        sentence_encoder: SentenceEncoder,
    ) -> None:
        """`coefficients`: (D,) float64."""
        self.identity = identity
        self.coefficients = coefficients
        self.intercept = intercept
        self.sentence_encoder = sentence_encoder

    def score_captions(self, captions: Sequence[str]) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped (METHODS §1.1)."""
        embeddings = self.sentence_encoder.embed_sentences(captions).astype(np.float64)  # (N, D)
        return embeddings @ self.coefficients + self.intercept


class TransformerStudent:
    """A sequence classifier with one logit, read as a regression (the class of the published student)."""

    def __init__(self, identity: ModelIdentity, model: Any, tokenizer: Any, batch_size: int, device: str) -> None:
        self.identity = identity
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.device = device

    @torch.inference_mode()
    def score_captions(self, captions: Sequence[str]) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped; cut at 128 tokens (METHODS §1.8)."""
        if not captions:
            return np.zeros(0)

        def encode(batch: list[str]) -> torch.Tensor:
            tokens = tokenize(self.tokenizer, self.model.config, batch).to(self.device)
            with autocast(self.device):
                logits = self.model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).logits
            return logits[:, 0].double().cpu()  # (B,)

        return run_by_length(list(captions), self.batch_size, encode).numpy()


def tokenize(tokenizer: Any, config: Any, captions: list[str]) -> Any:
    """Padded batch of at most 128 tokens, fewer where the model's positions end earlier.

    Training uses it too.
    """
    # RoBERTa numbers positions from pad_token_id + 1, which costs two
    longest = min(128, config.max_position_embeddings - 2)
    return tokenizer(captions, padding=True, truncation=True, max_length=longest, return_tensors="pt")


def load(request: EngineRequest) -> RidgeStudent | TransformerStudent:
    """A student folder: card.json says the kind; without a card, any one-logit sequence classifier (hub:,
    path:).

    Raises ValueError for an unknown kind, for a model with more than one logit, or where the ridge's sentence
    encoder is not the one it was fitted on.
    """
    folder = local_folder(request.address)
    card = read_card(folder)
    kind = card.get("kind", "roberta")
    if kind == "minilm_ridge":
        return _load_ridge(request, folder, card)
    if kind != "roberta":
        raise ValueError(f"{request.address.text}: unknown student kind {kind!r}; expected minilm_ridge or roberta")
    quiet_loading()
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, attn_implementation="eager"
    )
    if model.config.num_labels != 1:
        raise ValueError(f"{request.address.text}: a student has one logit, this model has {model.config.num_labels}")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return TransformerStudent(
        request.identity, model.to(request.device).eval(), tokenizer, request.batch_size, request.device
    )


def read_card(folder: Path) -> dict[str, Any]:
    """card.json of a student folder, {} where there is none (a checkpoint from elsewhere)."""
    path = folder / "card.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _load_ridge(request: EngineRequest, folder: Path, card: dict[str, Any]) -> RidgeStudent:
    from curation_assets.engines import sentence_encoder as sentence_encoders
    from curation_assets.engines.identities import identity_of

    address = request.companions["sentence_encoder"]
    encoder_identity = identity_of("sentence_encoder", address, {})
    if encoder_identity.weights_sha256 != card["sentence_encoder_sha256"]:
        raise ValueError(
            f"{request.address.text}: fitted on {card['sentence_encoder']} with weights "
            f"{card['sentence_encoder_sha256'][:12]}, found {encoder_identity.weights_sha256[:12]}; "
            "train the student again"
        )
    encoder = sentence_encoders.load(
        EngineRequest("sentence_encoder", address, {}, {}, request.batch_size, request.device, encoder_identity)
    )
    tensors = load_file(folder / "ridge.safetensors")
    return RidgeStudent(request.identity, tensors["coefficients"], float(tensors["intercept"][0]), encoder)
