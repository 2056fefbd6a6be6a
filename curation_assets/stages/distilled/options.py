"""Options of the stage distilled."""

from typing import Literal

from curation_assets.core.options import Options
from curation_assets.core.table_names import AGREEMENT
from curation_assets.core.validation import Whole, checked, setting

Similarity = Literal["text_similarity", "edit_similarity"]


@checked("options")
class DistilledOptions(Options):
    """What the student's agreement with people is measured on."""

    word_benchmark: str | None = setting(
        default=None, description="File of words rated for concreteness.", file_of=(AGREEMENT,)
    )
    agreement_methods: tuple[str, ...] = setting(
        default=(), description="Further methods to compare with ratings; they must read captions alone."
    )
    agreement_similarities: tuple[Similarity, ...] = setting(
        default=("edit_similarity",), description="Compared besides a teacher's own; text_similarity costs a model."
    )
    agreement_resamples: Whole = setting(
        default=1000, ge=0, unit="draws", description="Bootstrap of the agreement's intervals; 0: none."
    )
