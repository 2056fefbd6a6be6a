"""Options of a pool: everything that its declaration may set for the stages, with types, limits and defaults.

docs/options.md is made from this file: `python -m curation_assets.outputs.report.options_table`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from curation_assets.core.validation import Number, Switch, Switched, Whole, build, checked, setting
from curation_assets.numeric.fusion import Ties
from curation_assets.numeric.standardise import MIN_GROUP, MU_LOGIT, Grouping, LengthUnit
from curation_assets.stores.saved_rows import DEFAULT_SECONDS

DEFAULT_CAPTION_COUNT = 4  # generated captions per image; SIEVE §4 uses 8 (docs/formulas.md §2.2: 4 → 33.7, 8 → 34.0)

ImageDomain = Literal["web", "photographs", "scenes", "other"]
FuseOn = Literal["teacher", "student"]
KeepWhich = Literal["best", "hard", "easy", "random"]
Similarity = Literal["text_similarity", "edit_similarity"]
TrainingCaptions = Literal["raw", "chosen", "both"]
Control = Literal["longest_caption", "lexicon", "oracle", "all"]
CONTROLS: tuple[Control, ...] = get_args(Control)
CaptionMetric = Literal["bleu", "meteor", "rouge_l", "cider", "spice", "bert_score"]
OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
StudentKind = Literal["minilm_ridge", "minilm_mlp", "minilm_finetuned", "roberta"]


@checked("duplicates")
class DuplicateSettings:
    """The option `duplicates`: what makes two samples near-duplicates, and which one is kept."""

    perceptual_bits: Whole | None = setting(
        default=4, ge=0, le=15, unit="bits of 64", description="pHashes that differ in at most so many; null: no pHash."
    )
    cosine: Number | None = setting(
        default=None, gt=0, le=1, description="Image embeddings at least so near (SemDeDup); null: not compared."
    )
    pdq_bits: Whole | None = setting(
        default=None, ge=0, le=31, unit="bits of 256", description="PDQ hashes that differ in at most so many (31)."
    )
    copy_cosine: Number | None = setting(
        default=None,
        gt=0,
        le=1,
        description="SSCD vectors at least so near (.75); needs role copy_descriptor; null: not compared.",
    )
    keep: KeepWhich = setting(
        default="best", description="Which one: best (prefer), hard or easy (far from its cluster's centre), random."
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
        """Derived columns that are compared."""
        both = (
            ("perceptual_hash", self.perceptual_bits),
            ("pdq_hash", self.pdq_bits),
            ("copy_descriptor", self.copy_cosine),
            ("image_embedding", self.cosine),
        )
        return [name for name, limit in both if limit is not None]


@checked("caption_choice")
class CaptionChoice:
    """The option `caption_choice`: which samples keep their own caption, and how generated ones are compared."""

    raw_share: Number = setting(
        default=0.3, ge=0, le=1, description="Samples, best by clip_score, that keep their own caption."
    )
    icc_weight: Number = setting(
        default=0.3, ge=0, le=1, description="Of ICC beside the cosine, when captions are compared; 0: no student."
    )


@checked("student_fit")
class StudentFit:
    """The option `student_fit`: training of a student; null takes the default of its kind. Ridge students have none."""

    backbone: str | None = setting(
        default=None,
        description="Address that minilm_finetuned or roberta starts from, such as hub:distilroberta-base.",
    )
    epochs: Whole | None = setting(default=None, ge=1, description="Passes over the distillation sample at most.")
    batch_size: Whole | None = setting(default=None, ge=1, unit="captions", description="Captions per step; null: 32.")
    learning_rate: Number | None = setting(default=None, gt=0, description="Of AdamW.")
    patience: Whole | None = setting(
        default=None, ge=0, unit="epochs", description="Stop after so many without a better held-out tenth."
    )


@checked("train_sba")
class BridgeTraining:
    """The option `train_sba`: the bridge of the semantic teacher; null takes the published recipe (formulas.md
    §1.4)."""

    captions: str | None = setting(default=None, description="File to train on; null: the pool's other captions.")
    save_every: Whole = setting(default=200, ge=1, unit="steps", description="How often the training is saved.")
    learning_rate: Number | None = setting(default=None, gt=0, description="Highest of the schedule; null: .002.")
    warm_up_share: Number | None = setting(default=None, ge=0, lt=1, description="Of all steps; null: .03.")
    weight_decay: Number | None = setting(default=None, ge=0, description="Of AdamW; null: 0.")
    epochs: Whole | None = setting(default=None, ge=1, description="Passes over the captions; null: 2.")
    batch_size: Whole | None = setting(default=None, ge=1, unit="captions", description="Per step; null: 32.")
    accumulation: Whole | None = setting(default=None, ge=1, unit="steps", description="Per update; null: 4.")
    max_length: Whole | None = setting(default=None, ge=1, unit="tokens", description="Longest sequence; null: 2048.")
    max_gradient_norm: Number | None = setting(default=None, gt=0, description="Longer ones are clipped; null: 1.")
    seed: Whole | None = setting(default=None, description="Of initial weights and order; null: 42.")


_IN_A_FILE = re.compile(r"(?P<file>.+\.(parquet|csv|tsv|jsonl)):(?P<column>.+)")


def given_columns(given_signals: Mapping[str, str]) -> dict[str, tuple[Path | None, str]]:
    """Of the option `given_signals`: method → (file, or None for the pool's own table; column)."""
    found: dict[str, tuple[Path | None, str]] = {}
    for method, text in given_signals.items():
        match = _IN_A_FILE.fullmatch(text)
        found[method] = (Path(match["file"]).expanduser(), match["column"]) if match else (None, text)
    return found


@checked("options")
class PoolOptions:
    """Everything that the stages read of a pool's declaration, in the order of the flow."""

    # the scene world
    size: Whole | None = setting(default=None, ge=1, unit="samples", description="World pools only: how many scenes.")
    seed: Whole | None = setting(default=None, ge=0, description="World pools only: seed of the scenes.")
    # raw
    image_domain: ImageDomain | None = setting(
        default=None,
        description="Where the pairs come from, and so which measured AUCs are shown; null: web (a world: scenes).",
    )
    min_success_rate: Number = setting(
        default=0.1, ge=0, le=1, description="Share of the pool's usable rows that must not fail; 0: never stops."
    )
    hash_lists: tuple[str, ...] = setting(default=(), description="Files of hashes of images never to use or show.")
    backfill_cron: str = setting(default="0 * * * *", description="When Dagster fills missing shards.")
    quiet_minutes: Number = setting(
        default=5.0, ge=0, unit="minutes", description="Without new tables, before Dagster updates ledger and report."
    )
    opt_out_checks: Whole = setting(
        default=1000,
        ge=0,
        unit="images",
        description="Downloaded images whose robots.txt and headers are looked at again, per night; 0: none.",
    )
    owners: tuple[str, ...] = setting(
        default=(), description="Whom Dagster's UI names: e-mail addresses, or team:NAME."
    )
    # signals
    methods: tuple[str, ...] = setting(default=(), description="Methods to run besides the defaults.")
    caption_count: Whole = setting(
        default=DEFAULT_CAPTION_COUNT, ge=1, unit="captions", description="Generated per image (SIEVE: 8)."
    )
    given: Mapping[str, str] = setting(default_factory=dict, description="Columns you have already: column → file.")
    given_signals: Mapping[str, str] = setting(
        default_factory=dict,
        description="Values you have already: method → column of the pool's table, or FILE:COLUMN.",
    )
    image_clusters: Whole | None = setting(
        default=None, ge=1, unit="clusters", description="For image_based; null: one per 128 images."
    )
    reference_images: str | None = setting(
        default=None,
        description="For image_based, norm_sim, vas: folder (images, tars), a tar, an .npy of embeddings, or a pool.",
    )
    contrast_pairs: Whole | None = setting(
        default=None,
        ge=1,
        unit="pairs",
        description="For neg_clip_loss: pairs drawn as its reference; null: 4,096, and 32,768 from a million samples.",
    )
    canary: str | None = setting(
        default=None, description="Frozen samples that every build scores, relative to home; see curate drift freeze."
    )
    canary_methods: tuple[str, ...] | None = setting(
        default=None, description="Methods that score the canary; null: all that can."
    )
    duplicates: Switched[DuplicateSettings] = setting(default=None, description="Look for near-duplicates.")
    # teachers
    distil: Switch | None = setting(
        default=None, description="Run the teachers and distil a student of this pool; null: world pools only."
    )
    teachers: tuple[str, ...] | None = setting(
        default=None, description="Teachers of ICC by name; null: those that are methods by default (vba, sba)."
    )
    distillation_size: Whole = setting(  # ICC §4 scores 118 K, the embedded profile needs 500–700
        default=600, ge=1, unit="captions", description="Captions that the teachers score (ICC: 118,000)."
    )
    train_sba: Switched[BridgeTraining] = setting(default=None, description="Train the bridge of the teacher sba.")
    labels: str | None = setting(default=None, description="File of rated captions (0–3); null: planted ones.")
    labelled_captions: Whole = setting(
        default=244, ge=1, unit="captions", description="Planted ratings, where no file has any (ICC §4.3)."
    )
    labels_seed: Whole | None = setting(default=None, ge=0, description="Seed of planted ratings; null: 244.")
    caption_benchmark: str | None = setting(
        default=None, description="File of rated captions to measure agreement on; nothing is fitted on it."
    )
    save_every_seconds: Number = setting(
        default=DEFAULT_SECONDS,
        ge=0,
        unit="seconds",
        description="How often the finished rows of a model's table are saved.",
    )
    # standardised
    standardise_by: Grouping = setting(default="length", description="Statistics per caption length, or of all.")
    length_unit: LengthUnit = setting(default="words", description="What caption length counts.")
    min_group: Whole = setting(  # a group needs a spread
        default=MIN_GROUP, ge=2, unit="captions", description="Neighbouring lengths are merged up to so many."
    )
    mu_logit: Number = setting(default=MU_LOGIT, unit="logits", description="Centre of the target distribution.")
    related_to: str | None = setting(default=None, description="For relatedness: file of downstream captions.")
    # distilled
    fuse_on: FuseOn = setting(
        default="teacher", description="Fit fusion weights on teachers' scores, or students' (ICC, A.2)."
    )
    ties: Ties = setting(default="drop", description="Captions rated as the median: left out, or good, or bad.")
    fusion_l2: Number = setting(default=0.0, ge=0, description="L2 penalty of the fusion's regression; 0: none.")
    student_kind: StudentKind = setting(default="minilm_ridge", description="What the student is.")
    student_fit: StudentFit = setting(default_factory=StudentFit, description="How the student is trained.")
    student_seed: Whole = setting(default=0, ge=0, description="Seed of the student's training.")
    word_benchmark: str | None = setting(default=None, description="File of words rated for concreteness.")
    agreement_methods: tuple[str, ...] = setting(
        default=(), description="Further methods to compare with ratings; they must read captions alone."
    )
    agreement_similarities: tuple[Similarity, ...] = setting(
        default=("edit_similarity",), description="Compared besides a teacher's own; text_similarity costs a model."
    )
    agreement_resamples: Whole = setting(
        default=1000, ge=0, unit="draws", description="Bootstrap of the agreement's intervals; 0: none."
    )
    # fused, filtered
    recipes: Mapping[str, Mapping[str, Number]] = setting(
        default_factory=dict, description="Parameters of fused recipes: recipe → parameter → number."
    )
    caption_choice: Switched[CaptionChoice] = setting(
        default=None, description="Choose between a sample's own caption and generated ones, for exports and training."
    )
    policies: tuple[str, ...] | None = setting(
        default=None, description="Policies that judge the pool; null: all whose signals it runs."
    )
    fraction: Number | None = setting(
        default=None, gt=0, le=1, description="Share kept, in place of the shipped policies' own."
    )
    # downstream
    truth: str | None = setting(
        default=None, description="File of planted kinds (sample_id, kind), read by downstream/separation alone."
    )
    downstream: Switch | None = setting(
        default=None,
        description="Train models on every subset and measure them on `evaluation_set`; null: world pools only.",
    )
    evaluation_set: str | None = setting(
        default=None,
        description="What models are measured on: split:SHARE or shard:KEY of the pool, or a path; null: scenes.",
    )
    evaluation_images: Whole | None = setting(
        default=None, ge=2, unit="images", description="Measured on, at most; null: 200 scenes of a world, else 5,000."
    )
    downstream_trainers: tuple[str, ...] | None = setting(
        default=None, description="Models trained on each subset (docs/evaluation.md); null: captioning, retrieval."
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
        default_factory=dict, description="Subsets made elsewhere to train on: name → .npy of ids, or release:NAME."
    )
    downstream_captions: TrainingCaptions = setting(
        default="raw",
        description="Captions trained on: raw, chosen (caption_choice), or both: each set again as NAME_chosen.",
    )
    downstream_budget: Mapping[str, Mapping[str, Whole]] = setting(
        default_factory=dict,
        description="Of trainers, in place of their own: trainer → samples_seen, batch_size.",
    )
    caption_metrics: tuple[CaptionMetric, ...] = setting(
        default=("bleu", "rouge_l", "cider"),
        description="Of trained captioners; meteor and spice need Java, bert_score text_similarity.",
    )

    def __post_init__(self) -> None:
        for owner in self.owners:
            if not OWNER.fullmatch(owner):
                raise ValueError(f"owners must be e-mail addresses or read team:NAME, got {owner!r}")


#: What belongs to one pool alone and no profile may set.
OF_ONE_POOL = (
    "size", "seed", "hash_lists", "backfill_cron", "quiet_minutes", "canary", "given", "evaluation_set",
    "downstream_subsets",
)  # fmt: skip


def with_profile_options(declared: Mapping[str, Any], of_profile: Mapping[str, Any], where: str) -> PoolOptions:
    """Options that a pool declares over those of its profile; a mapping (`student_fit`) setting by setting.

    Raises ValueError that begins with `where` for what a profile may not set, or an option that does not exist.
    """
    own = sorted(set(of_profile) & set(OF_ONE_POOL))
    if own:
        raise ValueError(f"{where} may not set {', '.join(own)}: it belongs to one pool; set it in the pool's file")
    merged = dict(of_profile)
    for name, value in declared.items():
        given = merged.get(name)
        merged[name] = {**given, **value} if isinstance(given, Mapping) and isinstance(value, Mapping) else value
    return build(PoolOptions, merged, where)
