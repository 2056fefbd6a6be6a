"""The role scene_bank: captions of scenes and their embeddings, searched exhaustively. No training, no GPU.

The bank stands where the text-to-image model stands in VBA: a caption is "drawn" by the scenes nearest to it and
"described" by their captions. Embeddings of the embedded bank by the shipped encoder are shipped (made by
lab/scene_bank.py); those of any other bank are computed once and kept in the user's cache folder.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from curation_assets.core.progress import ProgressReporter, reporter_for
from curation_assets.core.roles import ModelIdentity, SentenceEncoder, Texts
from curation_assets.core.settings import cache_root
from curation_assets.engines import EngineRequest, sentence_encoder
from curation_assets.engines.addresses import WEIGHTS_ROOT, ModelAddress
from curation_assets.engines.batches import chunks, unique_texts
from curation_assets.engines.identities import identity_of
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds
from curation_assets.engines.pins import Pins, check_weights
from curation_assets.stores.documents import save_tensors
from curation_assets.world.bank.captions import bank_captions, captions_sha256

CAPTIONS_AT_ONCE = 256  # 256 × 24,000 scenes × 4 B = 25 MB of cosines
EMBEDDED_AT_ONCE = 512

#: card.json (which captions, which encoder, sha256 of the file) and the embeddings of the embedded bank.
SHIPPED = WEIGHTS_ROOT / "scene_bank"
EMBEDDINGS_FILE = "embeddings.safetensors"


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`: the setting's address, else embedded:minilm."""
    return {"sentence_encoder": resolve(settings.get("sentence_encoder") or "embedded:minilm")}


def identity(address: ModelAddress, companions: Companions) -> ModelIdentity:
    """A bank is its captions and the encoder that compares them."""
    encoder_sha256 = identity_of("sentence_encoder", companions["sentence_encoder"], {}).weights_sha256
    lines = f"captions\t{captions_sha256(bank_captions(address.folder))}\nsentence_encoder\t{encoder_sha256}"
    return ModelIdentity(address.text, address.revision, hashlib.sha256(lines.encode()).hexdigest())


NEEDS = RoleNeeds(schemes=("bank",), settings=("sentence_encoder",), companions=companions, identity=identity)


class SceneBankEngine:
    """Nearest scenes by cosine of sentence embeddings. The scenes are embedded at the first call."""

    def __init__(self, identity: ModelIdentity, scenes: Texts, encoder: SentenceEncoder, cache_folder: Path) -> None:
        """`scenes`: distinct captions."""
        self.identity = identity
        self.scenes = list(scenes)
        self.encoder = encoder
        self.made_of = (captions_sha256(tuple(scenes)), encoder.identity.weights_sha256)
        self.cache_file = (
            cache_folder / f"{hashlib.sha256(''.join((*self.made_of, 'int8')).encode()).hexdigest()[:32]}.safetensors"
        )
        self._embeddings: np.ndarray | None = None

    def nearest_scenes(self, captions: Texts, k: int) -> tuple[list[list[str]], np.ndarray]:
        """(N,) captions → N lists of the k nearest scenes, nearest first, and (N, k) cosines in [-1, 1].

        A bank with fewer than k scenes gives all it has. Raises ValueError for k below 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        k = min(k, len(self.scenes))
        distinct, inverse = unique_texts(captions)
        if not distinct:
            return [], np.zeros((0, k))
        bank = self.embeddings()  # (M, D)
        rows, cosines = [], []
        for texts in chunks(distinct, CAPTIONS_AT_ONCE):
            all_cosines = self.encoder.embed_sentences(texts) @ bank.T  # (B, M)
            nearest = np.argpartition(-all_cosines, k - 1, axis=1)[:, :k]  # (B, k)
            nearest = np.sort(nearest, axis=1)  # so that equal cosines come in the order of the bank
            nearest_cosines = np.take_along_axis(all_cosines, nearest, axis=1)
            order = np.argsort(-nearest_cosines, axis=1, kind="stable")
            rows.append(np.take_along_axis(nearest, order, axis=1))
            cosines.append(np.take_along_axis(nearest_cosines, order, axis=1))
        nearest_rows, values = np.concatenate(rows)[inverse], np.concatenate(cosines)[inverse]  # (N, k)
        return [[self.scenes[i] for i in row] for row in nearest_rows], np.clip(values.astype(np.float64), -1.0, 1.0)

    def embeddings(self) -> np.ndarray:
        """(M, D) float32, unit length: shipped, or read from the cache, or computed and written there.

        They are stored as int8 in any case, so that a fresh bank, a cached one and the shipped one answer alike.
        Raises ModelUnavailableError where the shipped file is damaged.
        """
        if self._embeddings is None:
            stored = shipped_embeddings(*self.made_of)
            stored = self._read_cache() if stored is None else stored
            directions = (self._compute() if stored is None else stored).astype(np.float32)
            self._embeddings = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        return self._embeddings

    def _read_cache(self) -> np.ndarray | None:
        if not self.cache_file.is_file():
            return None
        try:
            with safe_open(self.cache_file, "np") as file:
                stored, written = file.get_tensor("embeddings"), (file.metadata() or {}).get(_DIGEST)
        except (SafetensorError, KeyError, OSError) as error:  # a torn or foreign file
            warnings.warn(f"{self.cache_file} cannot be read ({error}); the bank is embedded anew", stacklevel=2)
            return None
        if written != _digest(stored):
            warnings.warn(f"{self.cache_file} is not what was kept there; the bank is embedded anew", stacklevel=2)
            return None
        return stored if stored.shape[0] == len(self.scenes) else None

    def _compute(self) -> np.ndarray:
        made = embed_scenes(self.scenes, self.encoder, reporter_for())
        try:
            save_tensors(self.cache_file, {"embeddings": made}, {_DIGEST: _digest(made)})
        except OSError as error:
            warnings.warn(f"the bank's embeddings cannot be kept in {self.cache_file} ({error})", stacklevel=2)
        return made


_DIGEST = "sha256"  # among the metadata of a kept file: of the embeddings


def _digest(embeddings: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(embeddings).tobytes()).hexdigest()


def embed_scenes(scenes: Texts, encoder: SentenceEncoder, progress: ProgressReporter) -> np.ndarray:
    """(M,) captions → (M, D) int8, the directions of their embeddings: cosines move by .003 at most."""
    parts = []
    with progress.task("embedding the scene bank, once", len(scenes)) as advance:
        for texts in chunks(scenes, EMBEDDED_AT_ONCE):
            vectors = encoder.embed_sentences(texts)  # (B, D)
            largest = np.abs(vectors).max(axis=1, keepdims=True)
            parts.append(np.rint(vectors / largest * 127).astype(np.int8))
            advance(len(texts))
    return np.concatenate(parts)


def shipped_embeddings(captions_sha256: str, encoder_sha256: str, folder: Path = SHIPPED) -> np.ndarray | None:
    """(M, D) int8 of these captions by this encoder; None where others are shipped.

    Raises ModelUnavailableError where the file is not the one that the card names.
    """
    card_file = folder / "card.json"
    card = json.loads(card_file.read_text(encoding="utf-8")) if card_file.is_file() else {}
    if (card.get("captions_sha256"), card.get("sentence_encoder_sha256")) != (captions_sha256, encoder_sha256):
        return None
    file = folder / EMBEDDINGS_FILE
    check_weights(file, Pins({file: card["embeddings_sha256"]}, "install the package again"))
    return load_file(file)["embeddings"]


def load(request: EngineRequest) -> SceneBankEngine:
    """bank:embedded (our grammar's scenes) or bank:/captions.txt (one caption a line).

    Setting `sentence_encoder`: address of the encoder that compares (default embedded:minilm).
    """
    encoder = sentence_encoder.load(request.for_companion("sentence_encoder"))
    return SceneBankEngine(
        request.identity, bank_captions(request.address.folder), encoder, cache_root() / "scene_bank"
    )
