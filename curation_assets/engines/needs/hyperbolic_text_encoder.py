"""hyperbolic_text_encoder: one folder of the user's own, or of a hub."""

from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(schemes=("path", "hub"), how_to_get="docs/user/formulas.md §15.12 says what the folder holds.")
