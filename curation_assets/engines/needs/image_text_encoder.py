"""image_text_encoder: also models of open_clip's catalogue."""

from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "open_clip"))
