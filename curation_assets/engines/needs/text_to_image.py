"""text_to_image: a CLIP text encoder, where the folder has none of its own; of a bank of photographs its encoder."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, clip_text_encoder
from curation_assets.engines.needs.captioner import bank_encoder


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """The bank's encoder and its parts, else the CLIP text encoder of a diffusion model."""
    return bank_encoder(address, settings, resolve) or clip_text_encoder("text_to_image", address, settings, resolve)


NEEDS = RoleNeeds(
    settings=("steps", "guidance_scale", "height", "width", "precision", "text_encoder"), companions=companions
)
