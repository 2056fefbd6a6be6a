"""kind_classifier: one part per backbone whose features the layer reads, named in its card."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """The backbones. Raises ValueError for a folder of another kind."""
    card = card_of(address)
    if card.get("kind") != "image_kind":
        raise ValueError(
            f"{address.text} tells no kinds of images (no card.json of kind image_kind); train one "
            "in a checkout: python -m lab image_kind --help"
        )
    return {name: resolve(f"embedded:{name}") for name in card["backbones"]}


NEEDS = RoleNeeds(companions=companions)
