"""student: one that reads a sentence encoder names it in its card; a cascade has two students."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import CASCADE, ModelAddress
from curation_assets.engines.needs import FOLDER_SCHEMES, Companions, Resolve, RoleNeeds, card_of


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`sentence_encoder`, where the card names one; `fast` and `slow` of a cascade."""
    both = {part: resolve(text) for part, text in CASCADE.items()} if address.scheme == "cascade" else {}
    encoder = card_of(address).get("sentence_encoder")
    return both | ({"sentence_encoder": resolve(encoder)} if encoder else {})


NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "cascade"), settings=("precision",), companions=companions)
