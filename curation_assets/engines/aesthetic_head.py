"""The role aesthetic_head: one linear layer on the unit embedding of a CLIP's image tower (LAION aesthetics)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from curation_assets.core.roles import Images, ImageTextEncoder, ModelIdentity
from curation_assets.engines import EngineRequest, image_text_encoder
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of

#: What config.json of a head has: address of the encoder, and the sha256 of its files when the head was converted.
ENCODER, ENCODER_SHA256 = "image_text_encoder", "image_text_encoder_sha256"
CONVERSION = "python -m curation_assets.engines.aesthetic_conversion HEAD.pth FOLDER --encoder ADDRESS"


def head_config(address: ModelAddress) -> dict[str, str]:
    """config.json of a head. Raises ValueError where it, or one of its two entries, is missing."""
    config = card_of(address, "config.json")
    missing = [name for name in (ENCODER, ENCODER_SHA256) if name not in config]
    if missing:
        raise ValueError(
            f"{address.text} is no aesthetic head: its config.json lacks {missing}. "
            f"Convert a published one: {CONVERSION}"
        )
    return config


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`image_text_encoder`, as config.json names it."""
    return {ENCODER: resolve(head_config(address)[ENCODER])}


NEEDS = RoleNeeds(companions=companions)


class LinearHead:
    """`embedding · weight + bias` of each image. formulas.md §14.3."""

    def __init__(self, identity: ModelIdentity, encoder: ImageTextEncoder, weight: np.ndarray, bias: float) -> None:
        """`weight`: (D,), D the width of the encoder's embeddings. Raises ValueError for another width."""
        width = encoder.embed_images([Image.new("RGB", (8, 8))]).shape[1]
        if len(weight) != width:
            raise ValueError(
                f"{identity.address}: this head reads embeddings of {len(weight)} numbers, and "
                f"{encoder.identity.address}, which its config.json names, gives {width}; convert it for the CLIP it "
                f"was trained on: {CONVERSION}"
            )
        self.identity = identity
        self.encoder = encoder
        self.weight = np.asarray(weight, dtype=np.float64)
        self.bias = bias

    def aesthetic_scores(self, images: Images) -> np.ndarray:
        """(N,) images → (N,) float64, not clipped."""
        if not images:
            return np.zeros(0)
        # a sum per row, no matrix product: the score of a row is the same whatever stands beside it
        return (self.encoder.embed_images(images) * self.weight).sum(axis=1) + self.bias


def load(request: EngineRequest) -> LinearHead:
    """path: or hub: of a folder with model.safetensors (weight (D,) or (1, D); bias) and config.json, as
    `aesthetic_conversion` writes it. The encoder that config.json names must still have the files it had then.

    Raises ValueError for another folder, for other files of the encoder, and for a head of another width.
    """
    companion = request.for_companion(ENCODER, head_config(request.address)[ENCODER_SHA256])
    tensors = load_file(local_folder(request.address) / "model.safetensors")
    if set(tensors) != {"weight", "bias"} or tensors["bias"].size != 1:
        shapes = {name: tensor.shape for name, tensor in sorted(tensors.items())}
        raise ValueError(f"{request.address.text}: expected weight (D,) or (1, D) and one bias, got {shapes}")
    weight = tensors["weight"].reshape(-1)
    return LinearHead(request.identity, image_text_encoder.load(companion), weight, float(tensors["bias"].reshape(())))
