"""A takedown feed of another home, from a file or a web server."""

import http.client
from pathlib import Path

from curation_assets.core.version import __version__
from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp
from curation_assets.stores.denylist import Entry
from curation_assets.stores.takedown_feed import MAX_BYTES, read_feed

MAX_SECONDS = 600.0


def fetched_feed(place: str) -> tuple[str, list[Entry]]:
    """(salt, entries) of the feed at a path or an https URL of a public server; redirects are not followed.

    Raises ValueError for what is no whole feed, and for an address or answer that is refused; OSError.
    """
    if "://" not in place:
        path = Path(place).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}; --feed takes a feed's file or https URL")
        with path.open("rb") as file:
            return read_feed(file.read(MAX_BYTES + 1), place)
    if not place.lower().startswith("https://"):
        raise ValueError(f"--feed takes a file or an https URL, got {place!r}: others could change what http carries")
    http_client = GuardedHttp(user_agent=f"curation_assets/{__version__}")
    try:
        with http_client.get(place, Deadline(MAX_SECONDS, idle_seconds=60)) as response:
            if response.status != http.HTTPStatus.OK:
                raise ValueError(f"{place}: expected HTTP 200, got {response.status}; nothing was applied")
            return read_feed(response.read(MAX_BYTES), place)
    except http.client.HTTPException as error:
        raise OSError(f"{place}: {type(error).__name__}: {error}; nothing was applied") from error
