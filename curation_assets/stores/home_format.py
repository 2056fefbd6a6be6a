"""The number of the format of a home on disk (docs/operator/format_on_disk.md).

No version misreads what a newer one wrote.
"""

import contextlib
from pathlib import Path

from curation_assets.core.errors import StoreError
from curation_assets.core.json_files import read_json
from curation_assets.core.settings import home_name
from curation_assets.core.version import __version__
from curation_assets.stores.documents import save_document
from curation_assets.stores.objects import MAX_AGE_SECONDS, ObjectChangedError, open_home

#: Raised when a home that this version writes can no longer be read by the version before.
FORMAT = 1
FORMAT_FILE = "format.json"  # under home


class HomeFormatError(StoreError, ValueError):
    """A home is of a format that this version does not read."""


def write_format(home: Path) -> None:
    """Number a home that has no number."""
    path = home / FORMAT_FILE
    if not path.is_file():
        with contextlib.suppress(ObjectChangedError):  # of a bucket: another machine numbered it
            save_document(path, {"format": FORMAT, "written_by": __version__})


def check_home(home: Path) -> None:
    """Open a home (`open_home`). Raise HomeFormatError for one of a newer format, DamagedFileError where the number
    cannot be read.

    A home without a number is of format 1, which was there before the number was.
    """
    open_home(home, max_age=MAX_AGE_SECONDS)
    path = home / FORMAT_FILE
    if not path.is_file():
        return
    advice = f"write {{'format': {FORMAT}}} into it where this version made the home"
    number = read_json(path, lambda content: int(content["format"]), advice=advice.replace("'", '"'))
    if number > FORMAT:
        raise HomeFormatError(
            f"{home_name(home)} is of format {number}, which a newer version made; curation_assets {__version__} reads "
            f"homes of format {FORMAT}: install the newer version, or name another home with --home"
        )
