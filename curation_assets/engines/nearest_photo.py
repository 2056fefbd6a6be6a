"""nearest_photo fills the role text_to_image without drawing: the photograph of a bank that lies nearest to a caption
in the joint space of an image–text encoder. It hands on the photograph's vector, which `nearest_captions` reads: VBA's
visual bottleneck (ICC §4.1) by retrieval. The bank holds vectors; photographs never ship.

A folder holds `photos.safetensors` (int8 vectors, a scale each) and `card.json` (which encoder, sha256 of its weights
and of the file).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from curation_assets.core.roles import ImageTextEncoder, ModelIdentity, PhotoVector, Texts
from curation_assets.engines import EngineRequest, image_text_encoder
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import chunks, unique_texts
from curation_assets.engines.needs import card_of
from curation_assets.engines.photo_pair import checked_tensors
from curation_assets.stores.file_hash import file_sha256

KIND = "nearest_photo"  # in card.json
PHOTOS_FILE = "photos.safetensors"
CAPTIONS_AT_ONCE = 512  # 512 × 3,000 photos × 4 B = 6 MB of cosines


@dataclass(eq=False, repr=False)
class NearestPhoto:
    """The photograph of a bank by cosine to a caption. Exhaustive, exact, the same at every call."""

    identity: ModelIdentity
    encoder: ImageTextEncoder
    vectors: np.ndarray  # (B, D) of the bank's photographs by `encoder`, unit length

    def generate_images(self, captions: Texts, seeds: Sequence[int]) -> list[PhotoVector]:
        """The nearest photograph's vector for each caption, the first of equal ones. Nothing is drawn from `seeds`.

        Raises ValueError when there is not one seed per caption.
        """
        if len(captions) != len(seeds):
            raise ValueError(f"expected one seed per caption, got {len(captions)} captions and {len(seeds)} seeds")
        distinct, inverse = unique_texts(captions)
        nearest: list[int] = []
        for texts in chunks(distinct, CAPTIONS_AT_ONCE):
            nearest += (self.encoder.embed_texts(texts) @ self.vectors.T).argmax(axis=1).tolist()  # (N, B)
        made_by = self.encoder.identity.weights_sha256
        return [PhotoVector(self.vectors[nearest[place]], made_by) for place in inverse]


def load(request: EngineRequest) -> NearestPhoto:
    """The bank in a folder, with the encoder that its card names.

    Raises ModelUnavailableError where the file is not the one of the card, or the encoder is not the one that made the
    vectors.
    """
    folder, card = local_folder(request.address), card_of(request.address)
    companion = request.for_companion("image_text_encoder", card["image_text_encoder_sha256"])
    vectors = from_stored(checked_tensors(folder / PHOTOS_FILE, card["photos_sha256"]))
    return NearestPhoto(request.identity, image_text_encoder.load(companion), vectors)


def write_bank(folder: Path, vectors: np.ndarray, encoder: ModelIdentity, **facts: Any) -> None:
    """Into an empty folder: vectors of photographs (B, D) by `encoder`, and card.json with `facts` besides."""
    save_file(to_stored(vectors), folder / PHOTOS_FILE)
    card = {
        "image_text_encoder": encoder.address,
        "image_text_encoder_sha256": encoder.weights_sha256,
        "kind": KIND,
        "photos": len(vectors),
        "photos_sha256": file_sha256(folder / PHOTOS_FILE),
        **facts,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def to_stored(vectors: np.ndarray) -> dict[str, torch.Tensor]:
    """(B, D) → int8 with a scale per vector: a quarter of the bytes, cosines move by about .001."""
    scale = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12) / 127
    return {
        "vectors": torch.from_numpy(np.rint(vectors / scale).astype(np.int8)),
        "scale": torch.from_numpy(scale.astype(np.float32)),
    }


def from_stored(stored: Mapping[str, torch.Tensor]) -> np.ndarray:
    """About what `to_stored` was given: (B, D) float32, unit length."""
    vectors = torch.nn.functional.normalize(stored["vectors"].float() * stored["scale"].float(), dim=1)
    return vectors.numpy()
