"""word_vectors: a file of vectors, or those that a package brings."""

from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

NEEDS = RoleNeeds(
    schemes=(*FOLDER_SCHEMES, "glove"),
    how_to_get=(
        "Rao et al. read GloVe 840B, glove.840B.300d.txt of nlp.stanford.edu/projects/glove (2 GB, unpacked 5.6 GB); "
        "name the file: roles: {word_vectors: 'path:/folder/glove.840B.300d.txt'}"
    ),
)
