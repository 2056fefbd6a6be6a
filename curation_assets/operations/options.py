"""Options of what is done to a pool beside its flow."""

from curation_assets.core.options import Options
from curation_assets.core.validation import Whole, checked, setting


@checked("options")
class OperationsOptions(Options):
    """What is looked at again every night."""

    opt_out_checks: Whole = setting(
        default=1000,
        ge=0,
        unit="images",
        description="Downloaded images whose robots.txt and headers are looked at again, per night; 0: none.",
    )
