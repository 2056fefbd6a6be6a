"""sentence_bottleneck: the sentence encoder that it was fitted on."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`: the setting's address, else the card's, else embedded:minilm."""
    encoder = settings.get("sentence_encoder") or card_of(address).get("sentence_encoder") or "embedded:minilm"
    return {"sentence_encoder": resolve(encoder)}


NEEDS = RoleNeeds(settings=("sentence_encoder",), companions=companions)
