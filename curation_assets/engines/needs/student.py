"""student: one on frozen embeddings names its sentence encoder in its card."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`, where the card names one."""
    encoder = card_of(address).get("sentence_encoder")
    return {"sentence_encoder": resolve(encoder)} if encoder else {}


NEEDS = RoleNeeds(companions=companions)
