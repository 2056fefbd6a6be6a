"""Options that decide which tables a pool has."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from curation_assets.core.options import Options
from curation_assets.core.table_names import BENCHMARKS, LABELLED_CAPTIONS
from curation_assets.core.validation import Number, Switch, Switched, Whole, checked, setting
from curation_assets.stores.saved_rows import DEFAULT_SECONDS

PhotoBank = Literal["shipped", "pool"]
FuseOn = Literal["teacher", "student"]
KeepWhich = Literal["best", "hard", "easy", "random"]


@checked("duplicates")
class DuplicateSettings:
    """The option `duplicates`: when two samples are near-duplicates, and which one is kept."""

    heading: ClassVar = "Duplicates"

    perceptual_bits: Whole | None = setting(
        default=4, ge=0, le=15, unit="bits of 64", description="Most bits in which pHashes differ; null: no pHash."
    )
    cosine: Number | None = setting(
        default=None, gt=0, le=1, description="Least cosine of image embeddings (SemDeDup); null: not compared."
    )
    pdq_bits: Whole | None = setting(
        default=None, ge=0, le=31, unit="bits of 256", description="Most bits in which PDQ hashes differ, such as 31."
    )
    copy_cosine: Number | None = setting(
        default=None,
        gt=0,
        le=1,
        description="Least cosine of SSCD vectors, such as .75; needs role copy_descriptor; null: not compared.",
    )
    keep: KeepWhich = setting(
        default="best",
        description="Which one: best (see prefer), hard (far from its cluster's centre), easy (near it) or random.",
    )
    prefer: str | None = setting(
        default=None, description="Table whose better value is kept, such as signals.clip_score; null: most pixels."
    )

    def __post_init__(self) -> None:
        if self.prefer is not None and not self.prefer.startswith("signals."):
            raise ValueError(f"prefer must read signals.METHOD, got {self.prefer!r}")
        if self.keep != "best" and self.prefer is not None:
            raise ValueError(f"prefer ranks with keep: best; got keep: {self.keep}")
        if self.keep in ("hard", "easy") and self.cosine is None:
            raise ValueError(f"keep: {self.keep} needs image embeddings: set cosine, too")

    @property
    def columns(self) -> list[str]:
        """Derived columns that are compared: those with a limit."""
        limits = {
            "perceptual_hash": self.perceptual_bits,
            "pdq_hash": self.pdq_bits,
            "copy_descriptor": self.copy_cosine,
            "image_embedding": self.cosine,
        }
        return [name for name, limit in limits.items() if limit is not None]


@checked("train_sba")
class BridgeTraining:
    """The option `train_sba`: training of the semantic teacher's bridge. Null is the published
    recipe's value (formulas.md §1.4)."""

    heading: ClassVar = "Training of SBA's bridge"

    captions: str | None = setting(default=None, description="File to train on; null: the pool's other captions.")
    save_every: Whole = setting(default=200, ge=1, unit="steps", description="How often the training is saved.")
    learning_rate: Number | None = setting(default=None, gt=0, description="Peak of the schedule; null: .002.")
    warm_up_share: Number | None = setting(default=None, ge=0, lt=1, description="Share of all steps; null: .03.")
    weight_decay: Number | None = setting(default=None, ge=0, description="Of AdamW; null: 0.")
    epochs: Whole | None = setting(default=None, ge=1, description="Passes over the captions; null: 2.")
    batch_size: Whole | None = setting(default=None, ge=1, unit="captions", description="Per step; null: 32.")
    accumulation: Whole | None = setting(default=None, ge=1, unit="steps", description="Per update; null: 4.")
    max_length: Whole | None = setting(default=None, ge=1, unit="tokens", description="Longest sequence; null: 2048.")
    max_gradient_norm: Number | None = setting(default=None, gt=0, description="Longer gradients are clipped; null: 1.")
    seed: Whole | None = setting(default=None, description="Of initial weights and order; null: 42.")


@checked("options")
class FlowOptions(Options):
    """Which methods, recipes and policies run, and what decides which tables there are."""

    min_success_rate: Number = setting(
        default=0.1, ge=0, le=1, description="Share of the pool's usable rows that must not fail; 0: never stops."
    )
    save_every_seconds: Number = setting(
        default=DEFAULT_SECONDS,
        ge=0,
        unit="seconds",
        description="How often the finished rows of a model's table are saved.",
    )
    methods: tuple[str, ...] = setting(default=(), description="Methods to run besides the defaults.")
    given: Mapping[str, str] = setting(
        default_factory=dict, description="Columns you have already: column → file.", of_one_pool=True
    )
    duplicates: Switched[DuplicateSettings] = setting(default=None, description="Look for near-duplicates.")
    teachers: tuple[str, ...] | None = setting(
        default=None, description="Teachers of ICC by name; null: those that are methods by default (vba, sba)."
    )
    train_sba: Switched[BridgeTraining] = setting(default=None, description="Train the bridge of the teacher sba.")
    photo_bank: PhotoBank = setting(
        default="shipped", description="Where VBA finds a caption's photograph: Flickr8k's, or the pool's own images."
    )
    labels: str | None = setting(
        default=None, description="File of rated captions (0–3); null: planted ones.", file_of=(LABELLED_CAPTIONS,)
    )
    fuse_on: FuseOn = setting(
        default="teacher", description="Fit fusion weights on teachers' scores, or students' (ICC, A.2)."
    )
    recipes: Mapping[str, Mapping[str, Number]] = setting(
        default_factory=dict, description="Parameters of fused recipes: recipe → parameter → number."
    )
    decontaminate: tuple[str, ...] = setting(
        default=(),
        description="Benchmarks that no policy keeps rows of: folders, tars, .npy (hashes, vectors), .jsonl (texts).",
        file_of=(BENCHMARKS,),
    )
    decontaminate_words: Whole = setting(
        default=13, ge=5, unit="words", description="In a row, shared with a text of a benchmark; 8 finds more."
    )
    decontaminate_crops: Switch = setting(
        default=True,
        description="Also hash benchmarks' images cropped, framed and with text on them: .1 to 1 s an image, once.",
    )
    policies: tuple[str, ...] | None = setting(
        default=None, description="Policies that judge the pool; null: all whose signals it runs."
    )
    fraction: Number | None = setting(
        default=None, gt=0, le=1, description="Share kept, in place of the shipped policies' own."
    )
    downstream: Switch | None = setting(
        default=None,
        description="Train models on every subset and measure them on `evaluation_set`; null: world pools only.",
    )
