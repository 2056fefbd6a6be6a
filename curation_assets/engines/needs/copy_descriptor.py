"""copy_descriptor: one folder of the user's own, or of a hub."""

from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(schemes=("path", "hub"), how_to_get="docs/models/sscd.md says how to make the folder.")
