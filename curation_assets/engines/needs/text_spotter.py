"""text_spotter: how large an image the detector reads, and what it keeps."""

from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(settings=("side_px", "box_threshold", "threads"), package="rapidocr", extra="ocr")
