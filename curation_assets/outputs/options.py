"""Options of what leaves a pool."""

import re

from curation_assets.core.options import Options
from curation_assets.core.validation import checked, setting

_URL = re.compile(r"https?://[!-~]+")  # nothing that would end a link in a card, nor a character that is not ASCII


@checked("options")
class OutputsOptions(Options):
    """What exports state."""

    takedown_feed: str | None = setting(
        default=None, description="Public URL of this home's takedown feed; cards and manifests of exports state it."
    )

    def __post_init__(self) -> None:
        url = self.takedown_feed
        if url is not None and (not _URL.fullmatch(url) or set(url) & set('<>()[]`|"\\')):
            raise ValueError(f"takedown_feed must be a URL such as https://example.org/takedowns.jsonl, got {url!r}")
