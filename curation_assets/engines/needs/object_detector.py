"""object_detector: the image tower of a folder of patch labels; the encoder that finds a list of labels."""

import json
from collections.abc import Mapping
from typing import Any

from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.needs import FOLDER_SCHEMES, Companions, Resolve, RoleNeeds


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`tower`, where config.json names one; of a list of labels `image_text_encoder`, which the settings name."""
    folder = local_folder(address)
    if folder.is_file():
        if "image_text_encoder" not in settings:
            raise ValueError(
                f"{address.text} is a list of labels: name the model that finds them in the profile, "
                "generation: {object_detector: {image_text_encoder: 'embedded:clip'}}"
            )
        return {"image_text_encoder": resolve(settings["image_text_encoder"])}
    config = folder / "config.json"
    tower = json.loads(config.read_text(encoding="utf-8")).get("tower") if config.is_file() else None
    return {} if tower is None else {"tower": resolve(f"path:{folder / tower}")}


NEEDS = RoleNeeds(
    schemes=(*FOLDER_SCHEMES, "ssd"),
    settings=("threshold", "min_boxes", "max_boxes", "count", "prompt", "image_text_encoder", "threads"),
    companions=companions,
)
