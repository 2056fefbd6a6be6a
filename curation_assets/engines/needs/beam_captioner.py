"""beam_captioner: a model that writes captions, by beams; or a bank of captions, as of the role captioner."""

from curation_assets.engines.needs import RoleNeeds
from curation_assets.engines.needs.captioner import WRITING, bank_encoder

NEEDS = RoleNeeds(settings=(*WRITING, "beams"), companions=bank_encoder)
