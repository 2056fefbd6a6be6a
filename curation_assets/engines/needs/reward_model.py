"""reward_model: the pair encoder whose vectors it reads."""

import json
from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`pair_encoder`, as config.json names it; '../NAME' is a folder beside it."""
    folder = local_folder(address)
    text = str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["pair_encoder"])
    return {"pair_encoder": resolve(f"path:{folder / text}" if text.startswith("../") else text)}


NEEDS = RoleNeeds(companions=companions)
