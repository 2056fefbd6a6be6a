"""Options of the stage downstream."""

from collections.abc import Mapping
from typing import Literal, get_args

from curation_assets.core.options import Options
from curation_assets.core.validation import Number, Whole, checked, setting

TrainingCaptions = Literal["raw", "chosen", "both"]
Control = Literal["longest_caption", "lexicon", "oracle", "all"]
CONTROLS: tuple[Control, ...] = get_args(Control)
CaptionMetric = Literal["bleu", "meteor", "rouge_l", "cider", "spice", "bert_score"]


@checked("options")
class DownstreamOptions(Options):
    """Which models are trained on which subsets, and what they are measured on."""

    truth: str | None = setting(
        default=None, description="File of planted kinds (sample_id, kind), read by downstream/separation alone."
    )
    evaluation_set: str | None = setting(
        default=None,
        description="What models are measured on: split:SHARE or shard:KEY of the pool, or a path; null: scenes.",
        of_one_pool=True,
    )
    evaluation_images: Whole | None = setting(
        default=None, ge=2, unit="images", description="Measured on, at most; null: 200 scenes of a world, else 5,000."
    )
    downstream_trainers: tuple[str, ...] | None = setting(
        default=None,
        description="Models trained on each subset (docs/user/evaluation.md); null: captioning, retrieval.",
    )
    downstream_sizes: tuple[Number, ...] = setting(
        default=(),
        description="Shares of the pool at which subsets are compared, to a thousandth; none: each policy's own size.",
    )
    downstream_seeds: tuple[Whole, ...] = setting(
        default=(0,), description="One training per seed and subset; `random` is drawn anew for each."
    )
    downstream_controls: tuple[Control, ...] = setting(
        default=CONTROLS, description="Training sets beside policies, where the pool has what they need."
    )
    downstream_subsets: Mapping[str, str] = setting(
        default_factory=dict,
        description="Subsets made elsewhere to train on: name → .npy of ids, or release:NAME.",
        of_one_pool=True,
    )
    downstream_captions: TrainingCaptions = setting(
        default="raw",
        description="Captions trained on: raw, chosen (caption_choice), or both: each set again as NAME_chosen.",
    )
    downstream_budget: Mapping[str, Mapping[str, Whole]] = setting(
        default_factory=dict, description="Of trainers, in place of their own: trainer → samples_seen, batch_size."
    )
    caption_metrics: tuple[CaptionMetric, ...] = setting(
        default=("bleu", "rouge_l", "cider"),
        description="Of trained captioners; meteor and spice need Java, bert_score text_similarity.",
    )

    def __post_init__(self) -> None:
        for size in self.downstream_sizes:
            if not 0 < size <= 1 or size != round(size, 3):
                raise ValueError(f"downstream_sizes must be shares in (0, 1], in thousandths, got {size}")
