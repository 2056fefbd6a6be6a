"""beam_captioner: a model that writes captions, by beams."""

from curation_assets.engines.needs import RoleNeeds
from curation_assets.engines.needs.captioner import WRITING

NEEDS = RoleNeeds(settings=(*WRITING, "beams"))
