"""Options of derived columns."""

from curation_assets.core.options import Options
from curation_assets.core.validation import Whole, checked, setting

DEFAULT_CAPTION_COUNT = 4  # generated captions per image; SIEVE §4 uses 8 (formulas.md §2.2: 4 → 33.7, 8 → 34.0)


@checked("options")
class ScoringOptions(Options):
    """How columns are derived from images."""

    caption_count: Whole = setting(
        default=DEFAULT_CAPTION_COUNT, ge=1, unit="captions", description="Generated per image (SIEVE: 8)."
    )
