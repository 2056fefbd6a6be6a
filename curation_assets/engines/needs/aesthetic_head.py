"""aesthetic_head: the image_text_encoder on whose embeddings it was trained."""

import json
from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds

#: What config.json of a head has: address of the encoder, and the sha256 of its files when the head was converted.
ENCODER, ENCODER_SHA256 = "image_text_encoder", "image_text_encoder_sha256"
CONVERSION = "python -m curation_assets.engines.aesthetic_conversion HEAD.pth FOLDER --encoder ADDRESS"


def head_config(address: ModelAddress) -> dict[str, str]:
    """config.json of a head. Raises ValueError where it, or one of its two entries, is missing."""
    path = local_folder(address) / "config.json"
    config: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    missing = [name for name in (ENCODER, ENCODER_SHA256) if name not in config]
    if missing:
        raise ValueError(
            f"{address.text} is no aesthetic head: {path} lacks {missing}. Convert a published one: {CONVERSION}"
        )
    return config


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`image_text_encoder`, as config.json names it."""
    return {ENCODER: resolve(head_config(address)[ENCODER])}


NEEDS = RoleNeeds(companions=companions)
