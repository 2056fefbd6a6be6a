"""quality_judge: what is asked of the model."""

from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(settings=("criterion", "prompt", "max_new_tokens", "precision"))
