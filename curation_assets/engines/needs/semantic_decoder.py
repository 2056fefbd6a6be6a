"""semantic_decoder: a bridge from CLIP to the language model, and a CLIP text encoder."""

from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, clip_text_encoder

HOW_TO_BRIDGE = (
    "train one (curate icc train-bridge, or a pool's option train_sba: true), or name its folder: "
    "generation: {semantic_decoder: {bridge: 'path:/folder'}}"
)


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`bridge`, where the settings name it, and `text_encoder`."""
    bridge: Companions = {}
    if "bridge" in settings:
        bridge["bridge"] = resolve(settings["bridge"])
    elif not (local_folder(address) / "bridge.safetensors").is_file():
        raise ValueError(
            f"{address.text} holds no bridge.safetensors (the linear layer from CLIP to the language model); "
            + HOW_TO_BRIDGE
        )
    return {**bridge, **clip_text_encoder("semantic_decoder", address, settings, resolve)}


NEEDS = RoleNeeds(
    settings=("beams", "no_repeat_ngram_size", "max_new_tokens", "precision", "bridge", "text_encoder"),
    companions=companions,
    inside={"bridge": HOW_TO_BRIDGE},
)
