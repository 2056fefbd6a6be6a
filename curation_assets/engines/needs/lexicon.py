"""lexicon: word lists of sentiment and profanity."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds

LISTS = {"polarity": "embedded:vader", "profanity": "embedded:better-profanity"}


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`polarity` and `profanity`: the settings' addresses (null: none), else the shipped lists."""
    named = {part: settings.get(part, shipped) for part, shipped in LISTS.items()}
    return {part: resolve(text) for part, text in named.items() if text is not None}


NEEDS = RoleNeeds(settings=tuple(LISTS), companions=companions, package="wordfreq", extra="texts")
