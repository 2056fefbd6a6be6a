"""text_similarity: which layer is matched, in which precision."""

from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(settings=("layer", "precision"))
