"""word_vectors: a file of vectors, or those that a package brings."""

from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "glove"))
