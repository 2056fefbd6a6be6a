"""text_to_image: a CLIP text encoder, where the folder has none of its own."""

from functools import partial

from curation_assets.engines.needs import RoleNeeds, clip_text_encoder

NEEDS = RoleNeeds(
    settings=("steps", "guidance_scale", "height", "width", "precision", "text_encoder"),
    companions=partial(clip_text_encoder, "text_to_image"),
)
