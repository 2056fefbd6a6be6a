"""Lists of ids, whole."""

from pathlib import Path

from curation_assets.numeric.identity import unpack_uids
from curation_assets.stores.subsets import packed_ids


def read_subset(path: Path) -> list[str]:
    """All ids of a file that lists samples, sorted, each as often as it is listed."""
    return unpack_uids(packed_ids(path))
