"""pair_encoder: what image_text_encoder takes."""

from curation_assets.engines.needs import image_text_encoder

NEEDS = image_text_encoder.NEEDS
