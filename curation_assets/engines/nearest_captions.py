"""nearest_captions fills the roles captioner and beam_captioner without generating: the captions of a bank that lie
nearest to an image in the joint space of an image–text encoder. What it writes is always a sentence that somebody
wrote, of another photo.

A folder holds `captions.txt` (one a line; or packed, `captions.txt.xz`), `card.json` (encoder, sha256 of contents)
and, where they ship, `sentences.safetensors`: the captions' sentence vectors in few bytes, from which a photo_pair
encoder has their place at once. Without them the captions are embedded when the engine is loaded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import Images, ImageTextEncoder, ModelIdentity, PhotoVector, Texts
from curation_assets.engines import EngineRequest, image_text_encoder
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import chunks
from curation_assets.engines.needs import card_of
from curation_assets.engines.photo_pair import PhotoPairEncoder, checked_tensors
from curation_assets.stores.file_hash import PACKED, unpacked, unpacked_sha256

KIND = "nearest_captions"  # in card.json
CAPTIONS_FILE, SENTENCES_FILE = "captions.txt", "sentences.safetensors"
STORED_COMPONENTS = 96  # of 384 numbers of a sentence vector
CAPTIONS_AT_ONCE = 2048  # 2048 × 5 heads × 512 × 4 B = 21 MB of hidden layers
IMAGES_AT_ONCE = 64  # 64 × 40,000 captions × 4 B = 10 MB of cosines


class NearestCaptions:
    """The captions of a bank by cosine to an image. Exhaustive, exact, the same at every call."""

    def __init__(
        self, identity: ModelIdentity, encoder: ImageTextEncoder, captions: Texts, vectors: np.ndarray
    ) -> None:
        """`captions`: (B,) distinct; `vectors`: (B, D), theirs by `encoder`."""
        self.identity = identity
        self.encoder = encoder
        self.captions = list(captions)
        self.vectors = vectors

    def sample_captions(self, images: Images, seeds: Sequence[int], count: int) -> list[list[str]]:
        """N lists of the `count` nearest captions, nearest first, equal ones in the bank's order.

        Nothing is drawn: `seeds` only has to hold one entry per image. Raises ValueError where it does not, for count
        below 1 or above the size of the bank.
        """
        if len(images) != len(seeds):
            raise ValueError(f"expected one seed per image, got {len(images)} images and {len(seeds)} seeds")
        return self.beam_captions(images, count)

    def beam_captions(self, images: Sequence[Image.Image | PhotoVector], beams: int) -> list[list[str]]:
        """N lists of the `beams` nearest captions, nearest first, equal ones in the bank's order.

        Raises ValueError for beams below 1 or above the size of the bank, and for vectors of another encoder.
        """
        if not 1 <= beams <= len(self.captions):
            raise ValueError(f"count must be in [1, {len(self.captions)}], the size of the bank; got {beams}")
        rows: list[list[str]] = []
        for batch in chunks(images, IMAGES_AT_ONCE):
            cosines = self._embed(batch) @ self.vectors.T  # (N, B)
            nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :beams]
            rows += [[self.captions[place] for place in row] for row in nearest]
        return rows

    def _embed(self, images: Sequence[Image.Image | PhotoVector]) -> np.ndarray:
        """(N,), at least one, all images or all vectors → (N, D)."""
        vectors = [image for image in images if isinstance(image, PhotoVector)]
        if not vectors:
            return self.encoder.embed_images(images)  # type: ignore[arg-type]
        mine = self.encoder.identity.weights_sha256
        others = {each.encoder_sha256 for each in vectors} - {mine}
        if others or len(vectors) < len(images):
            raise ValueError(
                f"expected photographs' vectors by the encoder {self.encoder.identity.address} ({mine[:12]}), got some "
                f"by {sorted(other[:12] for other in others)}; the roles text_to_image and beam_captioner need banks "
                "of one encoder"
            )
        return np.stack([each.vector for each in vectors])


def load(request: EngineRequest) -> NearestCaptions:
    """The bank in a folder, with the encoder that its card names.

    Raises ModelUnavailableError where a file is not the one of the card, ValueError for an empty bank.
    """
    folder, card = local_folder(request.address), card_of(request.address)
    encoder = image_text_encoder.load(request.for_companion("image_text_encoder"))
    packed = folder / (CAPTIONS_FILE + PACKED)
    captions = read_bank(packed if packed.is_file() else folder / CAPTIONS_FILE, card["captions_sha256"])
    return NearestCaptions(request.identity, encoder, captions, _vectors(folder, card, encoder, captions))


def read_bank(file: Path, sha256: str) -> list[str]:
    """Captions of a bank. Raises ModelUnavailableError for another file, ValueError for one without captions."""
    got = unpacked_sha256(file) if file.is_file() else "no file"
    if got != sha256:
        raise ModelUnavailableError(
            f"{file}: expected sha256 {sha256[:12]}, got {got[:12]}; install the package, or make the bank, again"
        )
    text = unpacked(file).decode().removesuffix("\n")
    if not text:
        raise ValueError(f"{file}: expected one caption a line, got none")
    return text.split("\n")  # vectors lie in the order of these lines, and no other character ends one


def _vectors(folder: Path, card: dict[str, str], encoder: ImageTextEncoder, captions: list[str]) -> np.ndarray:
    """(B, D): from the stored sentence vectors where the encoder reads the very same, else embedded now."""
    stored = folder / SENTENCES_FILE
    if isinstance(encoder, PhotoPairEncoder) and stored.is_file():
        tensors = checked_tensors(stored, card["sentences_sha256"])
        if encoder.encoder.identity.weights_sha256 == card["sentence_encoder_sha256"]:
            sentences = from_stored(tensors).split(CAPTIONS_AT_ONCE)
            return torch.cat([encoder.head.texts(part) for part in sentences]).numpy()
    return encoder.embed_texts(captions)


def to_stored(sentences: np.ndarray, size: int = STORED_COMPONENTS) -> dict[str, torch.Tensor]:
    """(B, 384) unit vectors → their principal components as int8, a scale per caption, and how to come back.

    96 of 384 find the same neighbours as far as SIEVE can tell (AUC .914 against .916 of 500 photos) in a quarter of
    the bytes.
    """
    mean = sentences.mean(axis=0)
    sample = (sentences - mean)[:: max(1, len(sentences) // 8000)]
    components = np.linalg.svd(sample, full_matrices=False)[2][:size]  # (C, 384)
    coordinates = (sentences - mean) @ components.T  # (B, C)
    scale = np.maximum(np.abs(coordinates).max(axis=1, keepdims=True), 1e-6) / 127
    arrays = {
        "mean": mean.astype(np.float16),
        "components": components.astype(np.float16),
        "coordinates": np.round(coordinates / scale).astype(np.int8),
        "scale": scale.astype(np.float16),
    }
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def from_stored(stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """About what `to_stored` was given: (B, 384), unit length."""
    t = {name: tensor.float() for name, tensor in stored.items()}
    return torch.nn.functional.normalize(t["mean"] + (t["coordinates"] * t["scale"]) @ t["components"], dim=1)
