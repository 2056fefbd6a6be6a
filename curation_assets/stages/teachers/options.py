"""Options of the stage teachers."""

from curation_assets.core.options import Options
from curation_assets.core.table_names import BENCHMARK_CAPTIONS
from curation_assets.core.validation import Whole, checked, setting


@checked("options")
class TeachersOptions(Options):
    """What the teachers score, and which ratings they are compared with."""

    distillation_size: Whole = setting(  # ICC §4 scores 118 K, the embedded profile needs 500–700
        default=600, ge=1, unit="captions", description="Captions that the teachers score (ICC: 118,000)."
    )
    labelled_captions: Whole = setting(
        default=244, ge=1, unit="captions", description="Planted ratings, where no file has any (ICC §4.3)."
    )
    caption_benchmark: str | None = setting(
        default=None,
        description="File of rated captions to measure agreement on; nothing is fitted on it.",
        file_of=(BENCHMARK_CAPTIONS,),
    )
