"""Options of the stage signals."""

from typing import ClassVar

from curation_assets.core.options import Options
from curation_assets.core.table_names import IMAGE_CLUSTERS, TARGET_IMAGES
from curation_assets.core.validation import Number, Switched, Whole, checked, setting


@checked("caption_choice")
class CaptionChoice:
    """The option `caption_choice`: which samples keep their own caption, and how generated ones are compared."""

    heading: ClassVar = "Caption choice"

    raw_share: Number = setting(
        default=0.3, ge=0, le=1, description="Samples, best by clip_score, that keep their own caption."
    )
    icc_weight: Number = setting(
        default=0.3, ge=0, le=1, description="Of ICC beside the cosine, when captions are compared; 0: no student."
    )


@checked("options")
class SignalsOptions(Options):
    """What signals compare images with, and the frozen samples that every build scores."""

    image_clusters: Whole | None = setting(
        default=None, ge=1, unit="clusters", description="For image_based; null: one per 128 images."
    )
    reference_images: str | None = setting(
        default=None,
        description="For image_based, norm_sim, vas: folder (images, tars), a tar, an .npy of embeddings, or a pool.",
        file_of=(IMAGE_CLUSTERS, TARGET_IMAGES),
    )
    contrast_pairs: Whole | None = setting(
        default=None,
        ge=1,
        unit="pairs",
        description="For neg_clip_loss: pairs drawn as its reference; null: 4,096, and 32,768 from a million samples.",
    )
    canary: str | None = setting(
        default=None,
        description="Frozen samples that every build scores, relative to home; see curate drift freeze.",
        of_one_pool=True,
    )
    canary_methods: tuple[str, ...] | None = setting(
        default=None, description="Methods that score the canary; null: all that can."
    )
    caption_choice: Switched[CaptionChoice] = setting(
        default=None, description="Choose between a sample's own caption and generated ones, for exports and training."
    )
