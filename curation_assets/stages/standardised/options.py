"""Options of the stage standardised."""

from curation_assets.core.options import Options
from curation_assets.core.table_names import WORD_WEIGHTS
from curation_assets.core.validation import Number, Whole, checked, setting
from curation_assets.numeric.fusion import Ties
from curation_assets.numeric.standardise import MIN_GROUP, MU_LOGIT, Grouping, LengthUnit


@checked("options")
class StandardisedOptions(Options):
    """How the teachers' scores are standardised and their fusion is fitted."""

    standardise_by: Grouping = setting(default="length", description="Statistics per caption length, or of all.")
    length_unit: LengthUnit = setting(default="words", description="What caption length counts.")
    min_group: Whole = setting(  # a group needs a spread
        default=MIN_GROUP, ge=2, unit="captions", description="Neighbouring lengths are merged up to so many."
    )
    mu_logit: Number = setting(default=MU_LOGIT, unit="logits", description="Centre of the target distribution.")
    related_to: str | None = setting(
        default=None, description="For relatedness: file of downstream captions.", file_of=(WORD_WEIGHTS,)
    )
    ties: Ties = setting(default="drop", description="Captions rated as the median: left out, or good, or bad.")
    fusion_l2: Number = setting(default=0.0, ge=0, description="L2 penalty of the fusion's regression; 0: none.")
