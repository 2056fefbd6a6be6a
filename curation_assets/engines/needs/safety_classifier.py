"""safety_classifier: a folder of a classifier, or one that a package brings."""

from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "onnx"), settings=("unsafe_labels", "threads"))
