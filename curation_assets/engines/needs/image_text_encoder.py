"""image_text_encoder: also models of open_clip's catalogue; heads on frozen encoders name these in their card."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import FOLDER_SCHEMES, Companions, Resolve, RoleNeeds, card_of


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """Of a folder of heads on frozen encoders `sentence_encoder` and one part per backbone; else none."""
    card = {} if address.scheme == "open_clip" else card_of(address)
    if card.get("kind") != "photo_pair":
        return {}
    parts = {"sentence_encoder": card["sentence_encoder"], **{name: f"embedded:{name}" for name in card["backbones"]}}
    return {part: resolve(text) for part, text in parts.items()}


NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "open_clip"), companions=companions)
