"""Stage `clip_image`: the second phase of `clip`, on the image tower alone."""

from curation_assets.training.clip import run_image_only as run

__all__ = ["run"]
