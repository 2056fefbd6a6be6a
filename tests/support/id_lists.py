"""Lists of ids, whole."""

from pathlib import Path
from tempfile import TemporaryDirectory

from curation_assets.stores.columns import uid_texts
from curation_assets.stores.subsets import listed_ids


def read_subset(path: Path) -> list[str]:
    """All ids of a file that lists samples, sorted, each as often as it is listed."""
    with TemporaryDirectory() as folder:
        return [one for part in listed_ids(path, Path(folder)) for one in uid_texts(*part.get_columns())]
